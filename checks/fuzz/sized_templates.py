"""Expressions about sizes, as text with slots (`templates.py` says what the slots are).

`{n}` is a Python number that is no float: an argument, a size, or what is computed of these.
"""

from __future__ import annotations

SIZED = (
    *("{t}[:{n}]", "{t}[{n}:]", "{t}[-{n}:]", "{t}[:-{n}]", "{t}[::2]", "{t}[1:]", "{t}[:-1]"),
    *("{t}[{n} // 2:]", "{t}[..., :{n}]", "{t}[..., {n}:]", "{t}[{n}:{n}]", "{t}[1:{n}]"),
    *("{t}[::{k} + 1]", "{t}[{n}::2]", "{t}[:, {n}:]", "{t}[:{n}, :{n}]", "{t}[None, :{n}]"),
    "{t}.narrow(0, 0, {n})",
    "{t}.narrow(0, {n}, 1)",
    "{t}[{n} % max(len({t}), 1)]",
    "{t}[{n} - 1]",
    "{t}[-{n}]",
    "{t}.select(-1, {n} % {t}.shape[-1])",
    *("{t}.reshape(-1)", "{t}.reshape(-1, 4)", "{t}.reshape({t}.shape[0], -1)", "{t}.flatten()"),
    *("{t}.reshape({t}.shape[::-1])", "{t}.reshape(-1, {t}.shape[-1])", "{t}.view(-1, 2)"),
    *("{t}.view({n}, -1)", "{t}.reshape({n}, -1)", "{t}.reshape({n}, {n})", "{t}.view(-1)"),
    *("{t}.unflatten(0, (-1, 1))", "{t}.unflatten(-1, (2, 2))", "{t}.unflatten(-1, (2, -1))"),
    *("torch.cat([{t}, {t}])", "torch.cat([{f}, {f}], {d})", "torch.cat({l})", "torch.stack({l})"),
    *("torch.cat([{t}, {t}[:{n}]])", "torch.cat([{t}[1:], {t}[:1]])", "torch.cat({l}, {d})"),
    *("torch.arange({n})", "torch.arange({n}, dtype=torch.float32)", "torch.arange(1, {n} + 1)"),
    *("torch.arange({n}, -1, -1)", "torch.arange(0, {n}, 2)", "torch.arange({n}, 2 * {n})"),
    *("torch.zeros({n}, 4)", "torch.ones({n})", "torch.full(({n}, 2), {c})", "torch.eye({n})"),
    *("{f}.new_zeros({n})", "torch.zeros({t}.shape)", "{t}.new_ones({t}.shape[0], {n})"),
    *(
        "{t}.expand({n}, *{t}.shape)",
        "{t}[:1].expand({n}, *{t}.shape[1:])",
        "{t}[0].expand_as({t})",
    ),
    *("{t}.repeat({n} % 3, *[1] * ({t}.dim() - 1))", "{t}.repeat_interleave({k}, 0)"),
    *("{t}.tile(({n} % 3, 1))", "{t}.repeat(2, {n} % 4)"),
    *("torch.tril(torch.ones({n}, {n}))", "torch.triu({f}, {n} % 3)", "torch.linspace(0, 1, {n})"),
    *("{f} @ {f}.mT", "{f}.mT @ {f}", "({f} @ {w}).sum({d})", "{f} @ torch.ones({f}.shape[-1])"),
    *("F.pad({f}, (1, {n} % 3))", "F.pad({f}, (0, 0, {n} % 4, 1))", "F.pad({f}, (0, -1))"),
    *("{t}.roll({n}, 0)", "{t}.roll(1, {d})", "{t}.flip({d})", "{t}.diagonal()", "{t}.t()"),
    *("{t}.chunk(3)[0]", "{t}.split(2)[0]", "{t}.tensor_split(3)[-1]", "{t}.chunk(2, {d})[-1]"),
    *("{t}.unbind(-1)[0]", "{t}.split({n})[-1]", "{t}.split([1, {t}.shape[0] - 1])[1]"),
    *("{t}.unfold(0, 2, 1)", "{t}.unfold(0, {n}, 2)", "{t}.cumsum({d})", "{t}.diff(dim={d})"),
    "torch.arange({n})[:, None] <= torch.arange({n})",
    "torch.arange({t}.shape[0]) < {n}",
    "{f}.masked_fill((torch.arange({f}.shape[0]) < {n})[:, None], {c})",
    "torch.where(torch.arange({f}.shape[-1]) < {n}, {f}, {c})",
    *("{f}.sort({d}, stable=True)[0]", "{f}.topk(min({n}, {f}.shape[-1]))[0]", "{f}.sort({d})[0]"),
    *("{f}.sum() / {n}", "{f} * {n}", "{f} / max({n}, 1)", "{f}.mean({d})", "{f}.softmax({d})"),
    *("{f}.amax({d})", "{f}.std({d}, unbiased=False)", "{f}.argmax({d})", "{f}.max({d})[0]"),
    *("F.one_hot(torch.arange({n}) % 3, 3)", "torch.diag({f})", "torch.block_diag({f}, {f})"),
    *("F.avg_pool1d({f}[None], 2)[0]", "F.max_pool1d({f}.t()[None], 2)[0]"),
    *(
        "F.conv1d({f}.t()[None], {w}[:, :, None])[0]",
        "F.conv1d({f}[None, None, :, 0], {w}[:, :2][:, None])",
    ),
    "F.scaled_dot_product_attention({f}[None], {f}[None], {f}[None])[0]",
    "F.scaled_dot_product_attention({f}[None], {f}[None], {f}[None], is_causal=True)[0]",
    *("torch.einsum('ij,kj->ik', {f}, {f})", "torch.outer({f}[..., 0], {f}[..., -1])"),
    *("F.embedding({i}.abs() % 4, {w})", "{f}[{i}.abs() % max(len({f}), 1)]"),
    "{f}.index_select(0, {i}.abs() % max(len({f}), 1))",
    "torch.zeros({n}, 4).index_add(0, {i}.abs() % max({n}, 1), {f})",
    "{f}.gather(0, ({i}.abs() % max(len({f}), 1))[:, None].expand(-1, {f}.shape[-1]))",
    *("F.layer_norm({f}, {f}.shape[-1:])", "F.normalize({f}, dim={d})", "torch.cdist({f}, {f})"),
    *("{t}.movedim(0, -1).contiguous()", "{t}.transpose(0, -1).reshape(-1)", "{t}.squeeze(0)"),
    *("{t}.unsqueeze({d})", "{t} + {t}.sum({d}, keepdim=True)", "{t}[:, None] * {t}[None]"),
    *("F.interpolate({f}[None], scale_factor=2)[0]", "F.interpolate({f}[None], size={n})[0]"),
    *(
        "torch.meshgrid({f}[..., 0], {f}[..., -1], indexing='ij')[0]",
        "torch.vander({f}[..., 0], 3)",
    ),
    "torch.stack([r * 2 for r in {f}])",
    "sum(r.sum() for r in {f})",
    "torch.stack([{f}.sum() + i for i in range({n})])",
    "torch.cat([r.flip(0) for r in {f}.split(2)])",
)

DECIDED = (
    *(
        "{t}[{b}]",
        "torch.masked_select({f}, {f} > 0)",
        "{f}.nonzero()",
        "({f} > 0).nonzero()[:, 0]",
    ),
    *(
        "torch.arange(int({b}.sum()))",
        "{f}[:int({b}.sum())]",
        "{i}.unique()",
        "torch.where({b})[0]",
    ),
    *("{f}.repeat_interleave({i}.abs() % 3, 0)", "torch.zeros(int({i}.abs().sum()) % 5, 4)"),
    *(
        "{f}[{f} > 0]",
        "{f}[{f}[..., 0] > 0]",
        "{f}[{f}.sum(-1) > {c}].sum(0)",
        "{t}[{i}[0].abs():]",
    ),
    *(
        "{f}[int({i}[0]) % 3:]",
        "torch.cat([{f}[{b}], {f}[~{b}]])",
        "{f}[{b}] @ {w}",
        "{b}.nonzero()",
    ),
    *(
        "torch.ones(int({b}.sum()), {n})",
        "{f}[{b}][:{n}]",
        "{f}[{b}].flip(0)",
        "{f}[{b}].cumsum(0)",
    ),
)

PLAIN_NUMBERS = ("{t}.shape[0]", "{t}.shape[-1]", "len({t})", "{t}.numel()", "len({l})", "{k}")

NUMBERS = (
    *("{t}.shape[0]", "{t}.shape[-1]", "len({t})", "{t}.size(0) // 2", "{t}.numel()", "{n} // 2"),
    *("{n} % 3", "max({n}, {n})", "min({n}, {n})", "{n} + 1", "{n} - 1", "({n} + 1) // 2"),
    *("{n} * 2", "abs({n} - {n})", "{t}.dim()", "{n} + {n}", "{n} * {n}", "-({n} // -2)"),
    *("{n} if {n} > {n} else {n}", "len({l})", "{n} % max({n}, 1)", "{n} // max({n}, 1)"),
)

DECIDED_NUMBERS = (
    "int({b}.sum())",
    "int({i}.abs().max())",
    "{i}[0].item() % 4",
    "int({f}.argmax())",
)

TESTS = (
    *("{n} > {n}", "{n} % 2 == 0", "{n} == {n}", "{t}.shape[0] > {n}", "{n} < 4", "len({t}) <= 2"),
    *("{t}.shape == {t}.shape", "{t}.numel() > 10", "not {t}.numel()", "{n} and {n} > 1"),
    *("{n} != 1", "1 < {n} <= 6", "{t}.shape[0] != {t}.shape[0]", "{n} in (1, 3, 5)"),
    *("{t}.shape[0] >= 2 and {f}.sum() > 0", "{f}.sum() > {n}", "len({l}) > {n}"),
)

IN_PLACE = (
    *("{x}[:{n}] += {c}", "{x}[{n}:] = {c}", "{x}[-{n}:] *= {c}", "{x}[:{n}] = {e}"),
    *("{x}[{b}] = {c}", "{x}[{b}] += {e}", "{x}[..., :{n}] *= {c}", "{x}.t()[:{n}].zero_()"),
    *(
        "{x}[{i}.abs() % max(len({x}), 1)] = {c}",
        "{x}[{x} > {c}] = {c}",
        "{x}.view(-1)[:{n}] += {c}",
    ),
    "{x}.index_add_(0, {i}.abs() % max(len({x}), 1), {e})",
    "{x}.index_copy_(0, torch.arange({x}.shape[0]).flip(0), {e})",
    *("{x}[1:] += {x}[:-1].clone()", "{x}[::2] = {e}", "{x}[{n} % max(len({x}), 1)] = {e}"),
    *("{x}[{n} - 1] += {c}", "{x}.chunk(2)[0].add_({c})", "{x}.unbind(0)[-1].mul_({c})"),
    *("{x}[:, {n} % 4] = {e}", "{x}.copy_({x}.flip(0))", "{x}.split(2)[-1].neg_()"),
    *("{x}.masked_fill_({b}[:, None], {c})", "{x}.fill_diagonal_({c})", "{x}[{n}:{n}].add_({e})"),
)

LOOPS = (
    *(
        "{i} in range({n})",
        "{i} in range({n})",
        "{i} in range({n}, 0, -1)",
        "{i} in range(0, {n}, 2)",
    ),
    *(
        "{i} in range(1, {n})",
        "{i} in reversed(range({n}))",
        "{r} in {t}",
        "{r} in {t}",
        "{r} in {f}",
    ),
    *("{i}, {r} in enumerate({t})", "{r}, {q} in zip({t}, {f})", "{r} in reversed({f})"),
    *(
        "{r} in {t}.split(2)",
        "{r} in {t}.split({n})",
        "{r} in {f}.chunk(3)",
        "{r} in {f}.unbind(0)",
    ),
    *("{r} in {f}.unbind(-1)", "{r} in {f}.tensor_split(2)", "{r} in list({l})", "{r} in {f}[1:]"),
    *(
        "{i}, {r} in zip(range({n}), {f})",
        "{r} in {f}.chunk({n})",
        "{i}, {r} in enumerate(list({l}))",
    ),
    "{r}, {q} in zip({f}[:-1], {f}[1:])",
)

ASSIGNMENTS = (
    *("torch.tanh({v} + {f})", "{v} * 0.5 + {f}", "{v} - {f}.mean()", "{v} * {f}.sigmoid()"),
)

GROWN = (
    *("torch.cat([{v}, {v}[-1:] * 0.5])", "torch.cat([{v}, {f}])", "torch.cat([{v}, {f}[None]])"),
    "torch.cat([{f}, {v}], -1)",
)

LISTS = (
    *("[{f}, {f}]", "list({t}.split(2))", "list({f}.chunk(3))", "[{f}]", "list({f})"),
    *("[r * 2 for r in {f}]", "list({f}.unbind(0))", "[{f} for _ in range({n})]"),
)

LIST_CHANGES = (
    *("{l}.append({f})", "{l}[-1] = {f}", "{l} = {l}[::-1]", "{l} = {l}[1:] + {l}[:1]"),
    *("{l} = [v * 0.5 for v in {l}]", "{l}.insert(0, {f})", "{l}.extend({f}.split(2))"),
    "{l}[0] = {l}[-1] * 2",
)

RECURSIVE = (
    """\
def r(x):
    if x.shape[0] <= 1:
        return {one}
    h = x.shape[0] // 2
    return torch.cat([r(x[:h]), r(x[h:])])
""",
    """\
def r(x):
    if len(x) == 0:
        return torch.zeros(4)
    return x[0] + {row} * r(x[1:])
""",
    """\
def r(x):
    if x.shape[0] < 2:
        return {one}
    y = r(x[::2])
    return torch.cat([y, y])[:x.shape[0]] + x
""",
    """\
def r(x, n=3):
    if n <= 0 or x.sum() > 40:
        return x
    return r({one}, n - 1)
""",
)
"""Functions of a tensor with rows of four. `{one}` is of the shape of `x`, `{row}` of a row's."""
