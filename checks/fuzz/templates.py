"""What random programs are made of: expressions and statements, as text with slots.

A slot stands for a random part: `{f}` a float tensor, `{i}` an integer tensor, `{b}` a tensor of
flags, `{t}` any tensor, `{e}` a larger expression of one, `{v}` a variable with a float tensor,
`{x}` what is written in place, `{w}` a weight or a view of one, `{l}` a list of tensors, `{n}` an
int, `{c}` a float literal, `{k}` and `{m}` int literals, `{d}` a dim; `statements.py` and
`family.py` have more. The writer tries each expression on sample values and drops the ones that
eager refuses, so that a template need not fit.
"""

from __future__ import annotations

POINTWISE = (
    "torch.tanh({f})", "torch.sigmoid({f})", "torch.relu({f})", "F.gelu({f})", "F.silu({f})",
    "F.softplus({f})", "F.elu({f})", "F.leaky_relu({f}, 0.1)", "F.hardtanh({f})",
    "torch.exp({f}.clamp(-4, 3))", "torch.log({f}.abs() + 1)", "torch.log1p({f}.abs())",
    "torch.sqrt({f}.abs())", "torch.rsqrt({f}.abs() + 0.5)", "torch.reciprocal({f}.abs() + 1)",
    "torch.sin({f})", "torch.cos({f})", "torch.erf({f})", "torch.floor({f})", "torch.ceil({f})",
    "torch.round({f})", "torch.trunc({f})", "torch.frac({f})", "{t}.abs()", "{t}.sign()", "-{f}",
    "{f} * {c}", "{c} - {f}", "{f} + {c}", "{f} / {c}", "{t} * {k}", "{t} + {k}", "{k} - {i}",
    "{t} + {n}", "{f} * {n}", "{t} * {t}", "{t} + {t}", "{t} - {t}", "{f} * {f}", "{f} + {f}",
    "{f} - {f}", "{f} / ({f}.abs() + 1)", "{f} * torch.tanh({f})", "torch.add({f}, {f}, alpha={k})",
    "torch.maximum({t}, {t})", "torch.minimum({f}, {f})", "torch.atan2({f}, {f})",
    "torch.copysign({f}, {f})", "torch.fmod({f}, 1.5)", "{f} % 1.5", "{f} // 0.75", "{f} ** 2",
    "{f}.abs() ** 0.5", "{i} // 3", "{i} % 3", "{i} * {i}", "{i} ** 2", "{i} & 3", "{i} | {k}",
    "{i} ^ {i}", "{i} << 1", "{i} >> 1", "~{i}", "~{b}", "{b} & {b}", "{b} | {b}", "{b} ^ {b}",
    "{b} + {i}", "{b} * {f}", "{f} > {c}", "{t} < {t}", "{t} == {t}", "{t} >= {k}", "{i} != {k}",
    "torch.isnan({f})", "torch.isfinite({f})", "torch.nan_to_num({f})",
    "torch.where({b}, {f}, {f})", "torch.where({f} > 0, {f}, {c})", "torch.where({b}, {t}, {t})",
    "{f}.masked_fill({b}, {c})", "{f}.clamp({c}, 1.5)", "{i}.clamp(-2, 3)",
    "torch.clamp({f}, min={f})", "torch.lerp({f}, {f}, 0.25)",
    "torch.addcmul({f}, {f}, {f}, value=0.5)", "torch.logical_and({t}, {t})",
    "torch.logical_not({t})", "{f}.float()", "{t}.double()", "{f}.half()", "{f}.bfloat16()",
    "{f}.long()", "{t}.int()", "{t}.bool()", "{t}.to({f}.dtype)",
)  # fmt: skip

REDUCTIONS = (
    "{f}.sum()", "{t}.sum({d})", "{t}.sum({d}, keepdim=True)", "{f}.mean()",
    "{f}.mean({d}, keepdim=True)", "{f}.amax({d})", "{f}.amin({d}, keepdim=True)", "{t}.max()",
    "{f}.max({d}).values", "{f}.max({d})[0]", "{f}.min({d})[1]", "{f}.argmax({d})", "{f}.argmin()",
    "{t}.any()", "{t}.all({d})", "{f}.var({d}, unbiased=False)", "{f}.std({d}, unbiased=False)",
    "{f}.norm()", "torch.linalg.vector_norm({f}, dim={d})", "{t}.prod({d})",
    "torch.cumsum({t}, {d})", "torch.logsumexp({f}, {d})", "torch.softmax({f}, {d})",
    "F.log_softmax({f}, {d})", "F.layer_norm({f}, {f}.shape[-1:])", "F.normalize({f}, dim={d})",
    "{b}.sum()", "torch.count_nonzero({t})", "{f}.cummax({d})[0]",
)  # fmt: skip

MOVES = (
    "{t}[0]", "{t}[-1]", "{t}[1:]", "{t}[:-1]", "{t}[::2]", "{t}[..., 0]", "{t}[:, 1:]",
    "{t}[:, -1]", "{t}[None]", "{t}[..., None]", "{t}[{i}.abs() % max({t}.shape[0], 1)]",
    "{t}[{n} % 2]", "{t}.t()", "{t}.transpose(0, 1)", "{t}.mT", "{t}.permute(1, 0)",
    "{t}.reshape(-1)", "{t}.flatten()", "{t}.view(-1)", "{t}.ravel()",
    "{t}.reshape({t}.shape[::-1])", "{t}.unsqueeze({d})", "{t}.squeeze({d})", "{t}.squeeze()",
    "{t}.movedim(0, -1)", "{t}.expand(2, *{t}.shape)", "{t}.repeat(2, *[1] * ({t}.dim() - 1))",
    "{t}.flip({d})", "{t}.roll(1, {d})", "{t}.narrow(0, 1, 2)", "{t}.select({d}, 1)",
    "{t}.diagonal()", "{t}.chunk(2, {d})[1]", "{t}.split(1, {d})[0]", "{t}.unbind({d})[-1]",
    "torch.tril({f})", "torch.triu({f}, 1)", "torch.diag({f})", "torch.cat([{t}, {t}])",
    "torch.cat([{f}, {f}], {d})", "torch.stack([{f}, {f}], {d})", "torch.stack({l})",
    "torch.cat({l})", "{l}[-1]", "{l}[{k}]", "{l}[{n} % len({l})]",
    "torch.gather({f}, 0, {i}.abs() % {f}.shape[0])",
    "{f}.index_select(0, {i}.flatten().abs() % {f}.shape[0])",
    "torch.take_along_dim({f}, {f}.argsort(-1, stable=True), -1)",
    "{f}.sort(dim={d}, stable=True)[0]", "{f}.topk(2)[0]", "F.pad({f}, (1, 2))",
    "F.one_hot({i}.abs() % 4, 4)", "torch.zeros_like({t})", "torch.ones_like({f})",
    "torch.full_like({f}, {c})", "{f}.new_zeros(3)", "torch.zeros({k})", "torch.arange(4)",
    "torch.arange({k}, 6)", "torch.tensor({n})", "torch.full((3,), {c})", "{t}.clone()",
    "{t}.contiguous()", "{t}.detach()", "{f}.index_fill(0, torch.tensor([0]), {c})",
    "torch.outer({f}.reshape(-1)[:3], {f}.reshape(-1)[:4])",
    "torch.zeros_like({f}).scatter_add(0, {i}.abs() % {f}.shape[0], {f})",
    "torch.meshgrid({f}.reshape(-1)[:2], {f}.reshape(-1)[:3], indexing='ij')[0]",
)  # fmt: skip

PRODUCTS = (
    "{f} @ {w}", "{f} @ {w}", "{w} @ {f}", "F.linear({f}, {w})", "F.linear({f}, {w}, {w})",
    "F.linear({f}, {w}[:2])", "torch.addmm({f}, {f}, {w})", "{f} @ {w}.t()",
    "{f} @ {w}[{n} % {w}.shape[0]]", "F.linear({f}, {w}[{n} % {w}.shape[0]])",
    "torch.bmm({f}[None], {w}[None])[0]", "torch.einsum('ij,kj->ik', {f}, {w})",
    "torch.mv({w}, {f})", "torch.dot({f}.reshape(-1)[:3], {w}.reshape(-1)[:3])", "{f} @ {f}.t()",
    "{f} @ {f}", "F.conv1d({f}.reshape(1, 1, -1), {w}.reshape(-1)[:3].reshape(1, 1, 3))",
    "F.conv1d({f}[None], {w}[:, :, None])", "F.embedding({i}.abs() % {w}.shape[0], {w})",
    "F.avg_pool1d({f}, 2)", "F.max_pool1d({f}, 2)",
    "F.scaled_dot_product_attention({f}[None], {f}[None], {f}[None])", "{w}.sum({d})", "{f} + {w}",
    "{f} * {w}", "{w}[{n} % {w}.shape[0]]", "{w} * 0.5",
)  # fmt: skip

VIEWS = (
    "{v}", "{v}", "{v}", "{v}[0]", "{v}[1]", "{v}[-1]", "{v}[1:]", "{v}[:2]", "{v}[::2]",
    "{v}[:, 1:]", "{v}[{n} % {v}.shape[0]]", "{v}.t()", "{v}.mT", "{v}.chunk(2)[1]",
    "{v}.flatten()", "{v}.flatten()[2:]", "{v}.view(-1, 2)", "{v}.unbind(0)[1]",
    "{v}.narrow(0, 1, 2)", "{v}.expand(2, *{v}.shape)", "{v}.select(-1, 1)",
)  # fmt: skip

SIZED = (
    "{t}[:{n}]", "{t}[{n}:]", "{t}[-{n}:]", "{t}[:-{n}]", "{t}[::2]", "{t}[1:]", "{t}[:-1]",
    "{t}[{n} // 2:]", "{t}[..., :{n}]", "{t}[..., {n}:]", "{t}[{n}:{n}]", "{t}[1:{n}]",
    "{t}[::{k} + 1]", "{t}[{n}::2]", "{t}[:, {n}:]", "{t}[:{n}, :{n}]", "{t}[None, :{n}]",
    "{t}.narrow(0, 0, {n})", "{t}.narrow(0, {n}, 1)", "{t}[{n} % max(len({t}), 1)]", "{t}[{n} - 1]",
    "{t}[-{n}]", "{t}.select(-1, {n} % {t}.shape[-1])", "{t}.reshape(-1)", "{t}.reshape(-1, 4)",
    "{t}.reshape({t}.shape[0], -1)", "{t}.flatten()", "{t}.reshape({t}.shape[::-1])",
    "{t}.reshape(-1, {t}.shape[-1])", "{t}.view(-1, 2)", "{t}.view({n}, -1)",
    "{t}.reshape({n}, -1)", "{t}.reshape({n}, {n})", "{t}.view(-1)", "{t}.unflatten(0, (-1, 1))",
    "{t}.unflatten(-1, (2, 2))", "{t}.unflatten(-1, (2, -1))", "torch.cat([{t}, {t}])",
    "torch.cat([{f}, {f}], {d})", "torch.cat({l})", "torch.stack({l})",
    "torch.cat([{t}, {t}[:{n}]])", "torch.cat([{t}[1:], {t}[:1]])", "torch.cat({l}, {d})",
    "torch.arange({n})", "torch.arange({n}, dtype=torch.float32)", "torch.arange(1, {n} + 1)",
    "torch.arange({n}, -1, -1)", "torch.arange(0, {n}, 2)", "torch.arange({n}, 2 * {n})",
    "torch.zeros({n}, 4)", "torch.ones({n})", "torch.full(({n}, 2), {c})", "torch.eye({n})",
    "{f}.new_zeros({n})", "torch.zeros({t}.shape)", "{t}.new_ones({t}.shape[0], {n})",
    "{t}.expand({n}, *{t}.shape)", "{t}[:1].expand({n}, *{t}.shape[1:])", "{t}[0].expand_as({t})",
    "{t}.repeat({n} % 3, *[1] * ({t}.dim() - 1))", "{t}.repeat_interleave({k}, 0)",
    "{t}.tile(({n} % 3, 1))", "{t}.repeat(2, {n} % 4)", "torch.tril(torch.ones({n}, {n}))",
    "torch.triu({f}, {n} % 3)", "torch.linspace(0, 1, {n})", "{f} @ {f}.mT", "{f}.mT @ {f}",
    "({f} @ {w}).sum({d})", "{f} @ torch.ones({f}.shape[-1])", "F.pad({f}, (1, {n} % 3))",
    "F.pad({f}, (0, 0, {n} % 4, 1))", "F.pad({f}, (0, -1))", "{t}.roll({n}, 0)", "{t}.roll(1, {d})",
    "{t}.flip({d})", "{t}.diagonal()", "{t}.t()", "{t}.chunk(3)[0]", "{t}.split(2)[0]",
    "{t}.tensor_split(3)[-1]", "{t}.chunk(2, {d})[-1]", "{t}.unbind(-1)[0]", "{t}.split({n})[-1]",
    "{t}.split([1, {t}.shape[0] - 1])[1]", "{t}.unfold(0, 2, 1)", "{t}.unfold(0, {n}, 2)",
    "{t}.cumsum({d})", "{t}.diff(dim={d})", "torch.arange({n})[:, None] <= torch.arange({n})",
    "torch.arange({t}.shape[0]) < {n}",
    "{f}.masked_fill((torch.arange({f}.shape[0]) < {n})[:, None], {c})",
    "torch.where(torch.arange({f}.shape[-1]) < {n}, {f}, {c})", "{f}.sort({d}, stable=True)[0]",
    "{f}.topk(min({n}, {f}.shape[-1]))[0]", "{f}.sort({d})[0]", "{f}.sum() / {n}", "{f} * {n}",
    "{f} / max({n}, 1)", "{f}.mean({d})", "{f}.softmax({d})", "{f}.amax({d})",
    "{f}.std({d}, unbiased=False)", "{f}.argmax({d})", "{f}.max({d})[0]",
    "F.one_hot(torch.arange({n}) % 3, 3)", "torch.diag({f})", "torch.block_diag({f}, {f})",
    "F.avg_pool1d({f}[None], 2)[0]", "F.max_pool1d({f}.t()[None], 2)[0]",
    "F.conv1d({f}.t()[None], {w}[:, :, None])[0]",
    "F.conv1d({f}[None, None, :, 0], {w}[:, :2][:, None])",
    "F.scaled_dot_product_attention({f}[None], {f}[None], {f}[None])[0]",
    "F.scaled_dot_product_attention({f}[None], {f}[None], {f}[None], is_causal=True)[0]",
    "torch.einsum('ij,kj->ik', {f}, {f})", "torch.outer({f}[..., 0], {f}[..., -1])",
    "F.embedding({i}.abs() % 4, {w})", "{f}[{i}.abs() % max(len({f}), 1)]",
    "{f}.index_select(0, {i}.abs() % max(len({f}), 1))",
    "torch.zeros({n}, 4).index_add(0, {i}.abs() % max({n}, 1), {f})",
    "{f}.gather(0, ({i}.abs() % max(len({f}), 1))[:, None].expand(-1, {f}.shape[-1]))",
    "F.layer_norm({f}, {f}.shape[-1:])", "F.normalize({f}, dim={d})", "torch.cdist({f}, {f})",
    "{t}.movedim(0, -1).contiguous()", "{t}.transpose(0, -1).reshape(-1)", "{t}.squeeze(0)",
    "{t}.unsqueeze({d})", "{t} + {t}.sum({d}, keepdim=True)", "{t}[:, None] * {t}[None]",
    "F.interpolate({f}[None], scale_factor=2)[0]", "F.interpolate({f}[None], size={n})[0]",
    "torch.meshgrid({f}[..., 0], {f}[..., -1], indexing='ij')[0]", "torch.vander({f}[..., 0], 3)",
    "torch.stack([r * 2 for r in {f}])", "sum(r.sum() for r in {f})",
    "torch.stack([{f}.sum() + i for i in range({n})])",
    "torch.cat([r.flip(0) for r in {f}.split(2)])",
)  # fmt: skip

DECIDED = (
    "{t}[{b}]", "torch.masked_select({f}, {f} > 0)", "{f}.nonzero()", "({f} > 0).nonzero()[:, 0]",
    "torch.arange(int({b}.sum()))", "{f}[:int({b}.sum())]", "{i}.unique()", "torch.where({b})[0]",
    "{f}.repeat_interleave({i}.abs() % 3, 0)", "torch.zeros(int({i}.abs().sum()) % 5, 4)",
    "{f}[{f} > 0]", "{f}[{f}[..., 0] > 0]", "{f}[{f}.sum(-1) > {c}].sum(0)", "{t}[{i}[0].abs():]",
    "{f}[int({i}[0]) % 3:]", "torch.cat([{f}[{b}], {f}[~{b}]])", "{f}[{b}] @ {w}", "{b}.nonzero()",
    "torch.ones(int({b}.sum()), {n})", "{f}[{b}][:{n}]", "{f}[{b}].flip(0)", "{f}[{b}].cumsum(0)",
)  # fmt: skip

TESTS = (
    "{f}.sum() > {c}", "{f}.sum() > 0", "{f}.mean() < {c}", "{f}.max() > {c}",
    "{f}.min() <= {f}.max()", "{f}.reshape(-1)[0] < {f}.reshape(-1)[-1]", "({f} > {c}).any()",
    "({f} == {f}).all()", "{b}.any()", "{i}.sum() % 2 == 0", "{i}.reshape(-1)[0] > {k}",
    "not {b}.all()", "{f}.abs().max() > {c}", "torch.isnan({f}).any()", "{f}.norm() < 2",
    "{f}.argmax() == {k}", "{n} % 2 == 0", "{n} > {k}", "{n} < 3", "len({l}) > {k}",
    "{t}.shape[0] > 2", "bool({f}.sum() > 0)", "0 < {f}.sum() < 3", "{f}.sum().item() > {c}",
)  # fmt: skip

SIZED_TESTS = (
    "{n} > {n}", "{n} % 2 == 0", "{n} == {n}", "{t}.shape[0] > {n}", "{n} < 4", "len({t}) <= 2",
    "{t}.shape == {t}.shape", "{t}.numel() > 10", "not {t}.numel()", "{n} and {n} > 1", "{n} != 1",
    "1 < {n} <= 6", "{t}.shape[0] != {t}.shape[0]", "{n} in (1, 3, 5)",
    "{t}.shape[0] >= 2 and {f}.sum() > 0", "{f}.sum() > {n}", "len({l}) > {n}",
)  # fmt: skip

NUMBERS = (
    "{n} + {k}", "{n} * 2", "{n} % 3", "{n} // 2", "-{n}", "abs({n})", "max({n}, {k})",
    "min({n}, 3)", "int({f}.sum().clamp(-9, 9)) % 5", "int({i}.reshape(-1)[0]) % 4",
    "{i}.sum().item() % 7", "int({f}.argmax())", "float({f}.reshape(-1)[0])", "{f}.sum().item()",
    "{f}.mean().item() * 0.5", "{t}.shape[0]", "{t}.numel()", "len({l})", "{n} if {n} > 1 else {k}",
    "int({b}.any())", "int({b}.sum())",
)  # fmt: skip

PLAIN_SIZES = (
    "{t}.shape[0]", "{t}.shape[-1]", "len({t})", "{t}.numel()", "len({l})", "{k}",
)  # fmt: skip

SIZED_NUMBERS = (
    "{t}.shape[0]", "{t}.shape[-1]", "len({t})", "{t}.size(0) // 2", "{t}.numel()", "{n} // 2",
    "{n} % 3", "max({n}, {n})", "min({n}, {n})", "{n} + 1", "{n} - 1", "({n} + 1) // 2", "{n} * 2",
    "abs({n} - {n})", "{t}.dim()", "{n} + {n}", "{n} * {n}", "-({n} // -2)",
    "{n} if {n} > {n} else {n}", "len({l})", "{n} % max({n}, 1)", "{n} // max({n}, 1)",
)  # fmt: skip

DECIDED_NUMBERS = (
    "int({b}.sum())", "int({i}.abs().max())", "{i}[0].item() % 4", "int({f}.argmax())",
)  # fmt: skip

IN_PLACE = (
    "{x}.mul_({c})", "{x}.add_({e})", "{x}.add_({c})", "{x}.sub_({e})", "{x}.copy_({e})",
    "{x}.zero_()", "{x}.fill_({c})", "{x}.tanh_()", "{x}.relu_()", "{x}.clamp_(-1, 1)",
    "{x}.neg_()", "{x}.masked_fill_({x} > {c}, {c})", "{x}[0] = {e}", "{x}[-1] = {c}",
    "{x}[1:] = {e}", "{x}[0] += {c}", "{x}[:2] *= {c}", "{x}[..., 0] = {e}",
    "{x}[{n} % {x}.shape[0]] = {e}", "{x}[{n} % {x}.shape[0]] += {c}", "{x}[{x} > {c}] = {c}",
    "{x} += {e}", "{x} *= {c}", "{x} -= {e}", "{x}.t().mul_({c})", "{x}.view(-1)[0] = {c}",
    "{x}.view(-1)[1:] += {c}", "{x}[0].add_({c})", "{x}.select(0, 0).copy_({e})",
    "{x}.index_add_(0, torch.tensor([0]), {x}[:1])", "{x}.unsqueeze(0)[0].mul_({c})",
    "{x}[0], {x}[-1] = {x}[-1].clone(), {x}[0].clone()", "torch.tanh({x}.clone(), out={x})",
    "{x}.index_fill_(0, torch.tensor([0]), {c})",
)  # fmt: skip

SIZED_IN_PLACE = (
    "{x}[:{n}] += {c}", "{x}[{n}:] = {c}", "{x}[-{n}:] *= {c}", "{x}[:{n}] = {e}", "{x}[{b}] = {c}",
    "{x}[{b}] += {e}", "{x}[..., :{n}] *= {c}", "{x}.t()[:{n}].zero_()",
    "{x}[{i}.abs() % max(len({x}), 1)] = {c}", "{x}[{x} > {c}] = {c}", "{x}.view(-1)[:{n}] += {c}",
    "{x}.index_add_(0, {i}.abs() % max(len({x}), 1), {e})",
    "{x}.index_copy_(0, torch.arange({x}.shape[0]).flip(0), {e})", "{x}[1:] += {x}[:-1].clone()",
    "{x}[::2] = {e}", "{x}[{n} % max(len({x}), 1)] = {e}", "{x}[{n} - 1] += {c}",
    "{x}.chunk(2)[0].add_({c})", "{x}.unbind(0)[-1].mul_({c})", "{x}[:, {n} % 4] = {e}",
    "{x}.copy_({x}.flip(0))", "{x}.split(2)[-1].neg_()", "{x}.masked_fill_({b}[:, None], {c})",
    "{x}.fill_diagonal_({c})", "{x}[{n}:{n}].add_({e})",
)  # fmt: skip

FLOATS = (
    "0.5", "0.5", "0.25", "-0.5", "0.9", "2.0", "-1.0", "1.5", "0.1", "0.0", "1.0", "3.0",
)  # fmt: skip

RARE_FLOATS = (
    "-0.0", "1e-3", "1e4", "float('inf')", "float('nan')", "1e-30",
)  # fmt: skip

INTS = (
    "0", "1", "1", "2", "2", "3", "-1", "-2", "5",
)  # fmt: skip

DIMS = (
    "0", "0", "-1", "-1", "1",
)  # fmt: skip
