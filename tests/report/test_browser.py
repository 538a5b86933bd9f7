"""The report in a real browser: drawn, without errors, in light and dark."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest

from lcprune.report import write_report

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-dev-shm-usage", "--window-size=1200,3600", "--virtual-time-budget=15000",
    "--enable-logging=stderr", "--v=0",
]  # fmt: skip


@pytest.mark.browser
@pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine: the report is not looked at in a browser")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_browser_draws_every_figure_without_errors(sample, tmp_path, scheme):
    run = sample(tmp_path / "run")
    page = write_report([run], run.file("report.html"))
    dark = ["--blink-settings=preferredColorScheme=0"] if scheme == "dark" else []
    command = [str(BROWSER), *FLAGS, *dark, f"--user-data-dir={tmp_path / 'profile'}"]
    done = subprocess.run(
        [*command, "--dump-dom", page.as_uri()], capture_output=True, text=True, timeout=120, check=False
    )
    complaints = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    assert not complaints, complaints
    dom = done.stdout
    assert 'data-drawn="yes"' in dom
    assert f'data-theme="{scheme}"' in dom
    figures = re.findall(r'<div class="live[^"]*" id="figure-(\w+)"(.*?)<img class="paper"', dom, re.S)
    assert len(figures) == 8
    for name, content in figures:
        assert len(re.findall(r"<path", content)) > 5, f"{name} is empty"
