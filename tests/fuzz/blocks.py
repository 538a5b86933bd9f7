"""Idioms: blocks of networks, where channels meet, split, move and gate one another."""

from __future__ import annotations

from .layers import act, ones, pointwise, width
from .programs import Draft, idiom


@idiom(8)
def block(d: Draft, x: str) -> str:
    """A module of its own, called in one of the ways that modules are called."""
    name = d.block(x)
    return d.pick(
        f"{name}({x})",
        f"{x} + {name}({x})",
        f"{name}({name}({x}))",
        f"torch.cat([{x}, {name}({x})], 1)",
        f"{name}({x}) + {name}({x}.flip(-1))",
        f"{x} * torch.sigmoid({name}({x}))",
        f"F.relu({x} + 0.5 * {name}({act(d, x)}))",
        f"sum([{name}({x}), {x}])",
    )


@idiom(4)
def residual(d: Draft, x: str) -> str:
    n, c, middle = d.space(x), d.shape(x)[1], width(d)
    inner = act(d, d.let(f"{pointwise(d, c, middle, n)}({x})"))
    out = d.let(f"{pointwise(d, middle, c, n)}({inner})")
    return d.pick(
        f"{x} + {out}", f"{out} + {x}", f"F.relu({x} + {out})", f"torch.add({x}, {out}, alpha=0.5)", f"{out}.add_({x})"
    )


@idiom(2)
def projection(d: Draft, x: str) -> str:
    n, c, out = d.space(x), d.shape(x)[1], width(d)
    left = d.let(f"{pointwise(d, c, out, n)}({x})")
    right = d.let(act(d, d.call(f"nn.Conv{n}d({c}, {out}, 3, padding=1)", x)))
    return d.pick(
        f"{left} + {right}",
        f"{left} * {right}",
        f"torch.maximum({left}, {right})",
        f"{left} - {right}",
        f"torch.stack([{left}, {right}]).mean(0)",
    )


@idiom(3)
def meet(d: Draft, x: str) -> str:
    y = d.other(x, lambda a, b: a == b)
    w = d.add("torch.ones(2)", "nn.Parameter")
    return d.pick(
        f"{x} + {y}",
        f"{x} * {y}",
        f"torch.lerp({x}, {y}, 0.3)",
        f"({w}[0] * {x} + {w}[1] * {y}) / {w}.sum()",
        f"torch.where({x} > 0, {x}, {y})",
    )


@idiom(3)
def dense(d: Draft, x: str) -> str:
    y = d.other(x, lambda a, b: len(a) == len(b) and a[2:] == b[2:] and a[0] == b[0])
    return d.pick(f"torch.cat([{x}, {y}], 1)", f"torch.cat(({y}, {x}, {x}), dim=1)", f"torch.hstack([{x}, {y}])")


@idiom(2)
def skip(d: Draft, x: str) -> str:
    """U-Net: an earlier value of another size is resized and concatenated or added."""
    y = d.other(x, lambda a, b: len(a) == len(b) and a[2:] != b[2:] and a[0] == b[0])
    z = d.let(f"F.interpolate({y}, size={x}.shape[2:])")
    return (
        d.pick(f"torch.cat([{x}, {z}], 1)", f"{x} + {z}") if d.shape(z) == d.shape(x) else f"torch.cat([{x}, {z}], 1)"
    )


@idiom(3)
def split(d: Draft, x: str) -> str:
    c = d.shape(x)[1]
    half = d.need(c // 2, c > 2)
    at = d.pick(half, 1, c // 3 + 1)
    how = d.pick(
        f"{x}.chunk(2, 1)",
        f"torch.split({x}, [{at}, {c - at}], 1)",
        f"{x}[:, :{at}], {x}[:, {at}:]",
        f"{x}.tensor_split(2, dim=1)",
        f"{x}[:, ::2], {x}[:, 1::2]",
        f"{x}.narrow(1, 0, {at}), {x}.narrow(1, {at}, {c - at})",
        f"{x}[:, :{x}.shape[1] // 2], {x}[:, {x}.shape[1] // 2:]",
    )
    d.do(f"a, b = {how}")
    n, (left, right) = d.space(x), (d.shape("a")[1], d.shape("b")[1])
    changed = d.let(act(d, f"{pointwise(d, left, d.pick(left, right, width(d)), n)}(a)"))
    options = [f"torch.cat([{changed}, b], 1)", f"torch.cat([b, {changed}], 1)", f"torch.cat([a, {changed}], 1)"]
    if d.shape(changed) == d.shape("b"):
        options += [f"{changed} * torch.sigmoid(b)", f"{changed} + b", f"torch.cat([{changed} + b, b], 1)"] * 2
    return d.pick(*options)


@idiom(2)
def gated(d: Draft, x: str) -> str:
    c = d.need(d.shape(x)[1], d.shape(x)[1] % 2 == 0 and d.shape(x)[1] > 2)
    return d.pick(
        f"F.glu({x}, 1)",
        f"{x}[:, :{c // 2}] * {x}[:, {c // 2}:].sigmoid()",
        f"torch.mul(*{x}.chunk(2, 1))",
        f"{x}.unflatten(1, (2, -1)).amax(1)",
        f"{x}.view({x}.shape[0], {c // 2}, 2, *{x}.shape[2:]).max(2)[0]",
        f"{x}.unflatten(1, (-1, 2)).sum(2)",
    )


@idiom(3)
def move(d: Draft, x: str) -> str:
    c, n = d.shape(x)[1], d.space(x)
    g = d.pick(*[g for g in (2, 3, 4) if c % g == 0 and c > g] or [1])
    own = d.add(str(g))
    order = d.add(f"torch.randperm({c})", "buffer")
    return d.pick(
        f"{x}.view({x}.shape[0], {g}, -1, *{x}.shape[2:]).transpose(1, 2).reshape({x}.shape)",
        f"{x}.view({x}.size(0), {own}, {x}.size(1) // {own}, *{x}.shape[2:]).transpose(1, 2).flatten(1, 2)",
        f"{x}.unflatten(1, ({c // g}, {g})).transpose(1, 2).reshape(*{x}.shape)",
        f"F.channel_shuffle({x}, {g})",
        f"{x}.flip(1)",
        f"torch.roll({x}, {d.pick(1, 2, -1)}, 1)",
        f"{x}[:, {order}]",
        f"{x}.index_select(1, {order})",
        f"{x}.repeat(1, 2{', 1' * n})",
        f"{x}.repeat_interleave(2, 1)",
        f"torch.cat([{x}, {x}.flip(1)], 1)",
        f"{x}.unsqueeze(2).expand(-1, -1, 2{', -1' * n}).flatten(1, 2)",
        f"torch.cat([{x}.relu(), (-{x}).relu()], 1)",
        f"torch.stack([{x}, {x} * 2], 2).flatten(1, 2)",
        f"torch.stack({x}.unbind(1)[::-1], 1)",
        f"F.pad({x}, [0, 0] * {n} + [{d.pick('0, 2', '1, 1', '2, 0')}])",
        f"{x}[:, 1:]",
        f"{x}[:, :-1]",
        f"{x}[:, :{max(c // 2, 1)}]",
        f"{x}[:, -{max(c // 3, 1)}:]",
        f"torch.cat([{x}[:, 1:], {x}[:, :1]], 1)",
        f"torch.cat([{x}, torch.zeros_like({x}[:, :2])], 1)",
        f"torch.cat([{x}, {x}.new_ones({x}.shape[0], 1, *{x}.shape[2:])], 1)",
    )


@idiom(2)
def reshuffle(d: Draft, x: str) -> str:
    """Channels become space and the other way round."""
    d.need(None, d.space(x) == 2)
    sizes = f"{x}.shape[0], {x}.shape[1] // 4, {x}.shape[2]"
    return d.pick(
        f"F.pixel_shuffle({x}, 2)",
        f"F.pixel_unshuffle({x}, 2)",
        f"F.avg_pool2d(F.pixel_shuffle({x}, 2), 2)",
        f"torch.cat([{x}[..., ::2, ::2], {x}[..., 1::2, ::2], {x}[..., ::2, 1::2], {x}[..., 1::2, 1::2]], 1)",
        f"F.unfold({x}, 2, stride=2).view({x}.shape[0], -1, {x}.shape[2] // 2, {x}.shape[3] // 2)",
        f"F.fold(F.unfold({x}, 3, padding=1), {x}.shape[2:], 3, padding=1) / 9",
        f"{x}.unfold(2, 2, 2).unfold(3, 2, 2).permute(0, 1, 4, 5, 2, 3).flatten(1, 3)",
        f"{x}.unflatten(1, (-1, 2, 2)).permute(0, 1, 4, 2, 5, 3).reshape({sizes} * 2, -1)",
        f"{x}.transpose(2, 3)",
        f"{x}.flatten(2)",
        f"{x}.flatten(0, 1).unsqueeze(1).tanh().view({x}.shape)",
        f"{x}.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)",
        f"{x}.reshape({x}.shape[0], {x}.shape[1] * {x}.shape[2], {x}.shape[3])",
    )


@idiom(2)
def squeeze_excite(d: Draft, x: str) -> str:
    n, c = d.space(x), d.shape(x)[1]
    mean = f"{x}.mean({tuple(range(2, n + 2))}, keepdim=True)"
    if d.pick(True, False):
        low, high = d.add(f"nn.Conv{n}d({c}, 3, 1)"), d.add(f"nn.Conv{n}d(3, {c}, 1)")
        return f"{x} * torch.sigmoid({high}(F.relu({low}({d.pick(mean, f'F.adaptive_avg_pool{n}d({x}, 1)')}))))"
    low, high = d.add(f"nn.Linear({c}, 3)"), d.add(f"nn.Linear(3, {c})")
    gate = f"torch.sigmoid({high}(F.relu({low}({x}.flatten(2).mean(2)))))"
    return d.pick(
        f"{x} * {gate}.view({x}.shape[0], -1{', 1' * n})",
        f"{x} * {gate}[(...,) + (None,) * {n}].expand_as({x})",
        f"torch.einsum('bc...,bc->bc...', {x}, {gate})",
    )


@idiom(2)
def gate(d: Draft, x: str) -> str:
    """Gates over space, over channels and from vectors."""
    n, c = d.space(x), d.shape(x)[1]
    spatial, eca = d.add(f"nn.Conv{n}d(2, 1, 3, padding=1)"), d.add("nn.Conv1d(1, 1, 3, padding=1, bias=False)")
    single = pointwise(d, c, 1, n)
    pooled = f"torch.cat([{x}.mean(1, keepdim=True), {x}.amax(1, keepdim=True)], 1)"
    return d.pick(
        f"{x} * torch.sigmoid({spatial}({pooled}))",
        f"{x} * torch.sigmoid({single}({x}))",
        f"{x} * torch.sigmoid({eca}({x}.flatten(2).mean(2).unsqueeze(1))).view({x}.shape[0], -1{', 1' * n})",
        f"{x} * F.softmax({x}.flatten(2).mean(2), 1).view({x}.shape[0], -1{', 1' * n}) * 5",
        f"{x} * {x}.sum(1, keepdim=True).tanh()",
        f"{x} / (1 + {x}.norm(dim=1, keepdim=True))",
        f"{x} * (1 + {x}.flatten(2).norm(dim=2)).log().view({x}.shape[0], -1{', 1' * n})",
    )


@idiom()
def film(d: Draft, x: str) -> str:
    """A vector input scales and shifts the channels."""
    z = d.other(x, lambda a, b: len(a) == 2 and a[0] == b[0])
    d.do(f"a, b = {d.add(f'nn.Linear({d.shape(z)[1]}, {2 * d.shape(x)[1]})')}({z}).chunk(2, 1)")
    return f"{x} * (1 + a.view({x}.shape[0], -1{', 1' * d.space(x)})) + b.view({x}.shape[0], -1{', 1' * d.space(x)})"


@idiom()
def selective(d: Draft, x: str) -> str:
    """Branches of different kernels, weighted by a softmax over the branches."""
    n, c, out = d.space(x), d.shape(x)[1], width(d)
    a, b = d.add(f"nn.Conv{n}d({c}, {out}, 3, padding=1)"), d.add(f"nn.Conv{n}d({c}, {out}, 1)")
    stacked = d.let(f"torch.stack([{a}({x}), {b}({x})], 1)")
    fc = d.add(f"nn.Linear({out}, {2 * out})")
    weight = f"{fc}({stacked}.sum(1).flatten(2).mean(2)).view({x}.shape[0], 2, -1{', 1' * n}).softmax(1)"
    return d.pick(
        f"({stacked} * {weight}).sum(1)", f"torch.einsum('bk...,bk...->b...', {stacked}, {weight}.expand_as({stacked}))"
    )


@idiom(2)
def attention(d: Draft, x: str) -> str:
    """Positions or channels look at one another; in heads or not."""
    c, heads = d.shape(x)[1], d.pick(1, 2)
    inner = heads * d.pick(3, 4)
    qkv, out = d.add(f"nn.Linear({c}, {3 * inner})"), d.add(f"nn.Linear({inner}, {c})")
    tokens = d.let(f"{x}.flatten(2).transpose(1, 2)")
    own = d.add(str(heads))
    if d.pick(True, False):
        d.do(f"q, k, v = {qkv}({tokens}).reshape({x}.shape[0], -1, 3, {own}, {inner // heads}).permute(2, 0, 3, 1, 4)")
    else:
        d.do(f"q, k, v = ({tokens} @ {qkv}.weight.t() + {qkv}.bias).unflatten(2, (3, {heads}, -1)).unbind(2)")
        d.do("q, k, v = (t.transpose(1, 2) for t in (q, k, v))")
    mixed = d.pick(
        "(q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5).softmax(-1) @ v",
        "torch.einsum('bhnm,bhmd->bhnd', torch.einsum('bhnd,bhmd->bhnm', q, k).softmax(-1), v)",
        "F.scaled_dot_product_attention(q, k, v)",
        "q.softmax(-1) @ (k.softmax(-2).transpose(-2, -1) @ v)",
        "v @ (k.transpose(-2, -1) @ q / q.shape[2]).softmax(-1)",
        "q * torch.sigmoid(k) + v",
    )
    result = d.let(f"{out}(({mixed}).transpose(1, 2).flatten(2)).transpose(1, 2).reshape({x}.shape)")
    return d.pick(f"{x} + {result}", result)


@idiom()
def channel_attention(d: Draft, x: str) -> str:
    flat = d.let(f"{x}.flatten(2)")
    scores = f"({flat} @ {flat}.transpose(1, 2) / {flat}.shape[2]).softmax(-1)"
    return d.pick(f"({scores} @ {flat}).view_as({x})", f"{x} + torch.bmm({scores}, {flat}).view({x}.shape)")


@idiom()
def token_mixing(d: Draft, x: str) -> str:
    """A linear layer along space, as in MLP-Mixer and gMLP."""
    length = d.values[x][0, 0].numel()
    first, second = d.add(f"nn.Linear({length}, 6)"), d.add(f"nn.Linear(6, {length})")
    return f"{x} + {second}(F.gelu({first}({x}.flatten(2)))).view_as({x})"


@idiom()
def dynamic_conv(d: Draft, x: str) -> str:
    """Weights from a mixture that each image chooses."""
    n, c, out = d.space(x), d.shape(x)[1], width(d)
    bank = d.add(f"0.3 * torch.randn(3, {out}, {c}{', 1' * n})", "nn.Parameter")
    choice = d.let(f"{d.add(f'nn.Linear({c}, 3)')}({x}.flatten(2).mean(2)).softmax(1)")
    flat, back = f"{x}.reshape(1, -1, *{x}.shape[2:])", f"view({x}.shape[0], -1, *{x}.shape[2:])"
    each = f"torch.einsum('bk,koi...->boi...', {choice}, {bank}).flatten(0, 1)"
    return d.pick(
        f"F.conv{n}d({flat}, {each}, groups={x}.shape[0]).{back}",
        f"torch.einsum('bk,koi,bin->bon', {choice}, {bank}.flatten(2), {x}.flatten(2)).{back}",
        f"sum({choice}[:, i].view(-1, 1{', 1' * n}) * F.conv{n}d({x}, {bank}[i]) for i in range(3))",
    )


@idiom()
def tied(d: Draft, x: str) -> str:
    """One weight in two places."""
    n, c, out = d.space(x), d.shape(x)[1], width(d)
    a, b = d.add(f"nn.Conv{n}d({c}, {out}, 1)"), d.add(f"nn.Conv{n}d({c}, {out}, 1)")
    e = d.add(f"nn.Conv{n}d({c}, {c}, 3, padding=1)")
    d.made.append(f"{b}.weight = {a}.weight")
    flat = f"{a}.weight.flatten(1)"
    return d.pick(
        f"{a}({x}) + {b}({x}).tanh()",
        f"torch.cat([{a}({x}), {b}({x}.flip(-1)).relu()], 1)",
        f"F.conv_transpose{n}d(F.relu({a}({x})), {a}.weight)",
        f"F.linear(F.relu(F.linear({x}.movedim(1, -1), {flat})), {flat}.t()).movedim(-1, 1)",
        f"{e}(F.relu({e}({x})))",
        f"{e}({x}) + {e}(F.avg_pool{n}d({x}, 3, 1, 1))",
    )


@idiom()
def grn(d: Draft, x: str) -> str:
    energy = d.let(f"{x}.flatten(2).norm(dim=2).view({x}.shape[0], -1{', 1' * d.space(x)})")
    g = d.add(f"torch.ones({d.shape(x)[1]})", "nn.Parameter")
    return f"{x} + {g}.view({ones(d, x)}) * {x} * {energy} / ({energy}.mean(1, keepdim=True) + 1)"


@idiom()
def second_order(d: Draft, x: str) -> str:
    n, c = d.space(x), d.shape(x)[1]
    a, b = pointwise(d, c, 3, n), pointwise(d, c, 4, n)
    left, right = d.let(f"{a}({x}).flatten(2)"), d.let(f"{b}({x}).flatten(2)")
    outer = d.let(f"({left} @ {right}.transpose(1, 2)).flatten(1) / {left}.shape[2]")
    return f"{x} * {d.add(f'nn.Linear(12, {c})')}({outer}).view({x}.shape[0], -1{', 1' * n})"
