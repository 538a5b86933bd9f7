"""Idioms: what Python code does to tensors, and how networks end."""

from __future__ import annotations

from .layers import act, pointwise, width
from .programs import Draft, idiom


@idiom(3)
def in_place(d: Draft, x: str) -> str:
    c = d.shape(x)[1]
    at = d.pick(1, max(c // 2, 1))
    y = d.let(d.pick(f"{x}.clone()", f"{x} * 1", x, f"F.relu({x}, inplace=True)"))
    d.do(
        d.pick(
            f"{y}.mul_(0.5)",
            f"{y} += 1",
            f"{y} += {x}",
            f"{y}.relu_()",
            f"{y}[:, :{at}] = {y}[:, :{at}].tanh()",
            f"{y}[:, :{at}] *= 2",
            f"{y}[:, {at}:] += 0.5",
            f"{y}[:, ::2] = 0.5",
            f"{y}[..., 0] = 0",
            f"{y}[{y} < 0] = 0",
            f"{y}.clamp_(-1, 1)",
            f"{y}[:, -1:] = {y}[:, :1]",
            f"torch.sigmoid_({y})",
            f"{y}.add_({x}, alpha=0.5)",
            f"{y}[0] = 0.1",
            f"{y}.copy_({x}.tanh())",
            f"{y}.narrow(1, 0, {at}).zero_()",
        )
    )
    return y


@idiom()
def written(d: Draft, x: str) -> str:
    """A result assembled in memory that was made for it."""
    c = d.shape(x)[1]
    at = d.need(c // 2, c > 1)
    y = d.let(d.pick(f"torch.zeros_like({x})", f"{x}.new_zeros({x}.shape)", f"torch.zeros({x}.shape, dtype={x}.dtype)"))
    d.do(
        d.pick(
            f"{y}[:, :{at}] = {x}[:, :{at}]",
            f"{y}[:, :{at}] = {x}[:, -{at}:]",
            f"{y}[:, :{at}, ..., 1:] = {x}[:, :{at}, ..., :-1]",
        )
    )
    d.do(f"{y}[:, {at}:] = {act(d, f'{x}[:, {at}:]')}")
    return y


@idiom(2)
def reads_sizes(d: Draft, x: str) -> str:
    """Python numbers made of sizes."""
    c, n = d.shape(x)[1], d.space(x)
    own = d.add(str(c))
    return d.pick(
        f"{x} * ({x}.shape[1] ** -0.5)",
        f"{x} / {own}",
        f"{x}.sum(1, keepdim=True) / {x}.shape[1] + {x}",
        f"{x}.view({x}.shape[0], {own}, -1).view({x}.shape)",
        f"{x}.view({x}.shape[0], {c}, -1).view_as({x})",
        f"{x}.reshape(-1, {own}, *{x}.shape[2:])",
        f"({x} if {x}.shape[1] > {d.pick(c - 1, c)} else {x} * 2)",
        f"torch.stack([{x}[:, i] * (i + 1) for i in range({x}.shape[1])], 1) / {x}.shape[1]",
        f"torch.cat([{x}[:, i : i + 1].tanh() for i in range({x}.size(1))], 1)",
        f"{x} * torch.arange({x}.shape[1], dtype={x}.dtype).view(-1{', 1' * n}) / 4",
        f"{x} + torch.zeros({x}.shape[1], dtype={x}.dtype).view(1, -1{', 1' * n})",
        f"{x} * torch.linspace(0.5, 1, {x}.shape[-1], dtype={x}.dtype)",
        f"{x} * math.log({x}[0].numel())",
        f"{x} * len({x}.unbind(1)) / {c}",
        f"{x} + {x}.new_full((1, {own}{', 1' * n}), 0.5)",
        f"F.adaptive_avg_pool{n}d({x}, {x}.shape[-1] // 2)",
    )


@idiom()
def looks_at_values(d: Draft, x: str) -> str:
    c = d.shape(x)[1]
    return d.pick(
        f"{x} if {x}.mean() > 0 else -{x}",
        f"{x} / {x}.abs().max().item()",
        f"{x}.gather(1, {x}.argsort(1))",
        f"{x}.sort(-1)[0]",
        f"{x}.topk({max(c // 2, 1)}, 1)[0]",
        f"{x} * ({x}.argmax(1, keepdim=True) + 1) * 0.2",
        f"{x} * F.one_hot({x}.flatten(2).mean(2).argmax(1), {x}.shape[1]).view({x}.shape[0], -1{', 1' * d.space(x)})",
        f"{x} + ({x} > 0).to({x}.dtype)",
        f"torch.nan_to_num({x})",
        f"{x} * {x}.detach().sign()",
    )


@idiom()
def loop(d: Draft, x: str) -> str:
    """Several modules in a list, or one again and again."""
    n, c = d.space(x), d.shape(x)[1]
    y = d.let(f"{x} * 1")
    if d.pick(True, False):
        layers = d.add(f"nn.ModuleList([nn.Conv{n}d({c}, {c}, {d.pick(1, 3)}, padding='same') for _ in range(2)])")
        d.do(f"for m in {layers}: {y} = {y} + F.relu(m({y}))")
    else:
        layer = d.add(f"nn.ModuleDict({{'a': nn.Conv{n}d({c}, {c}, 1), 'b': nn.BatchNorm{n}d({c})}})")
        d.do(f"for name in ('a', 'b'): {y} = {layer}[name]({y})")
    return y


@idiom()
def res2(d: Draft, x: str) -> str:
    """Parts in a row, each with what came before."""
    n, c, parts = d.space(x), d.shape(x)[1], d.pick(2, 3, 4)
    size = d.need(c // parts, c % parts == 0 and c > parts)
    layers = d.add(f"nn.ModuleList([nn.Conv{n}d({size}, {size}, 3, padding=1) for _ in range({parts - 1})])")
    d.do(f"parts = {x}.{d.pick(f'split({size}, 1)', f'chunk({parts}, dim=1)')}")
    d.do("out = [parts[0]]")
    d.do(f"for part, m in zip(parts[1:], {layers}): out.append(m(part + out[-1]))")
    return "torch.cat(out, 1)"


@idiom()
def temporal_shift(d: Draft, x: str) -> str:
    c = d.shape(x)[1]
    fold = d.need(c // 4, c >= 4)
    own = d.add("4")
    d.do(f"fold = {d.pick(fold, f'{x}.shape[1] // {own}')}")
    left, right = f"torch.roll({x}[:, :fold], 1, -1)", f"torch.roll({x}[:, fold : 2 * fold], -1, -1)"
    return f"torch.cat([{left}, {right}, {x}[:, 2 * fold :]], 1)"


@idiom()
def map_from_vector(d: Draft, x: str) -> str:
    """A decoder: all becomes a vector, and a linear layer makes a map of it."""
    flat, out, n = d.values[x][0].numel(), width(d), d.space(x)
    sizes = [2] * n
    inner = d.call(f"nn.Linear({flat}, {out})", f"{x}.flatten(1)")
    made = d.call(f"nn.Linear({out}, {out * 2**n})", act(d, d.let(inner)))
    return d.pick(f"{made}.view(-1, {out}, *{sizes})", f"{made}.unflatten(1, (-1, *{sizes}))")


@idiom()
def tokens(d: Draft, x: str) -> str:
    """Learned tokens join those of the map, or look at them."""
    c = d.shape(x)[1]
    own = d.add(f"torch.randn(1, 2, {c})", "nn.Parameter")
    seen = d.let(f"{x}.flatten(2).transpose(1, 2)")
    return d.pick(
        f"torch.cat([{own}.expand({x}.shape[0], -1, -1), {seen}], 1).transpose(1, 2)",
        f"(torch.softmax({own} @ {seen}.transpose(1, 2), -1) @ {seen}).transpose(1, 2)",
        f"{x} + ({seen} * {own}.sum(1, keepdim=True)).sum(2).softmax(1).view({x}.shape[0], 1, *{x}.shape[2:])",
        f"{d.call(f'nn.LayerNorm({c})', seen)}.transpose(1, 2).reshape({x}.shape)",
    )


@idiom()
def unread(d: Draft, x: str) -> str:
    """A branch whose result nobody takes."""
    d.let(act(d, f"{pointwise(d, d.shape(x)[1], width(d), d.space(x))}({x})"))
    return f"{x} * 1"


@idiom()
def training_only(d: Draft, x: str) -> str:
    y = f"{d.call(f'nn.BatchNorm{d.space(x)}d({d.shape(x)[1]})', x)}"
    return f"({y} if self.training else {x})"


# -- heads ------------------------------------------------------------------------------------------------------


def _logits(d: Draft, x: str) -> str:
    shape, n = d.shape(x), len(d.shape(x)) - 2
    if n == 0:
        return d.call(f"nn.Linear({shape[1]}, 3)", x)
    flat = d.values[x][0].numel()
    h = width(d)
    hidden = d.add(f"nn.Linear({flat}, {h})")
    last = d.add(f"nn.Linear({h}, 3)")
    return d.pick(
        *[d.call(f"nn.Linear({shape[1]}, 3)", f"{x}.flatten(2).mean(2)")] * 3,
        d.call(f"nn.Linear({shape[1]}, 3)", f"F.adaptive_avg_pool{n}d({x}, 1).flatten(1)"),
        d.call(f"nn.Linear({flat}, 3)", f"{x}.flatten(1)"),
        d.call(f"nn.Linear({flat}, 3)", f"{x}.view({x}.size(0), -1)"),
        d.call(f"nn.Linear({flat}, 3)", f"{x}.movedim(1, -1).reshape({x}.shape[0], -1)"),
        f"{last}(F.relu({hidden}(torch.flatten({x}, 1))))",
        d.call(f"nn.Conv{n}d({shape[1]}, 2, 1)", x),
        f"{d.call(f'nn.Conv{n}d({shape[1]}, 3, 1)', x)}.flatten(2).mean(2)",
        f"{d.call(f'nn.Linear({shape[1]}, 3)', f'{x}.flatten(2).transpose(1, 2)')}.mean(1)",
        d.call(f"nn.Linear({2 * shape[1]}, 3)", f"torch.cat([{x}.flatten(2).mean(2), {x}.flatten(2).amax(2)], 1)"),
    )


@idiom(head=True)
def logits(d: Draft, x: str) -> str:
    return _logits(d, x)


@idiom(head=True)
def activated(d: Draft, x: str) -> str:
    return _logits(d, d.let(act(d, x)))


@idiom(head=True)
def soft(d: Draft, x: str) -> str:
    return d.pick("{}.softmax(1)", "F.log_softmax({}, dim=1)", "{}.sigmoid()", "{}.squeeze()").format(_logits(d, x))


@idiom(head=True)
def several(d: Draft, x: str) -> str:
    """More than one output, of the latest and of an earlier value."""
    y = d.pick(*d.batched())
    a, b = _logits(d, x), _logits(d, y)
    return d.pick(
        f"{a}, {b}",
        f"[{a}, {b}]",
        f"{{'out': {a}, 'aux': {b}}}",
        f"{{'a': ({a},), 'b': [{b}, {b}]}}",
        f"({a}, {x})",
        f"torch.cat([{a}.flatten(1), {b}.flatten(1)], 1)",
        f"({a}, {x}.shape[0])",
    )
