"""Exact algebra on low-rank updates ``dW = scaling * B A`` that never forms an (out, in) matrix.

A tall factor X of shape (n, k) is written ``X = Q R`` with orthonormal columns in Q. Two routes lead there:

* Cholesky of the Gram matrix: with columns scaled to unit length, ``D^-1 X^T X D^-1 = L L^T`` and
  ``Q = X D^-1 L^-T``. One pass over X, and Q stays implicit, so that a later combination ``Q C`` is one more pass.
  Whatever the rounding of the Gram matrix, Q R is X; what it costs is orthonormality, by its error times
  ``|L^-1|^2``. So it is summed in float32 blocks where that factor is small, in float64 otherwise.
* Householder QR in float64 where the columns are dependent or nearly so.

With ``B = Q_b R_b`` and ``A^T = Q_a R_a`` the singular value decomposition of dW is that of the small core
``scaling * R_b R_a^T``. Scaling the columns makes the result independent of how magnitude is spread over them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from verl_populora.adapters.weights import LoraFactors

# Limits on the growth |L^-1|_F^2 / k, which is 1 for orthogonal columns and about cond^2 for the worst ones.
# Rounding of a blocked float32 Gram matrix is near 1e-7 and of a float64 one near 1e-16, so orthonormality stays
# well below 1e-5 at either limit. Combining columns in float32 loses 6e-8 times the root of the growth.
_FLOAT32_GRAM_LIMIT = 2.0
_FLOAT32_COMBINATION_LIMIT = 64.0
_FLOAT64_GRAM_LIMIT = 1e8

# Rows that one float32 product sums up before the sum goes on in float64.
_BLOCK = 512
# Shorter columns could lose digits to underflow when squared in float32.
_MIN_FLOAT32_LENGTH = 1e-12

# Rows of U that decide the sign of a singular vector, which the decomposition itself leaves open.
_SIGN_ROWS = 64


@dataclass(frozen=True, slots=True)
class Basis:
    """``X = Q r`` with ``Q = source @ transform`` (``source`` itself where transform is None), Q^T Q = 1."""

    source: Tensor  # (n, k) the factor, or (n, q) Q in float64
    transform: Tensor | None  # (k, q) float64
    r: Tensor  # (q, k) float64, q = min(n, k)
    dtype: torch.dtype  # in which combinations are computed

    @property
    def size(self) -> int:
        """Length n of the basis vectors."""
        return self.source.shape[0]

    def combine(self, coefficients: Tensor, out: Tensor | None = None) -> Tensor:
        """``Q @ coefficients``, (n, m), computed in ``self.dtype``; coefficients (q, m) in float64.

        Written to ``out`` where that is given, rounded once to its dtype.
        """
        if self.transform is not None:
            coefficients = self.transform @ coefficients
        source, coefficients = self.source.to(self.dtype), coefficients.to(self.dtype)
        # The product takes the memory layout of the factor, so that the rows of a child's ``a`` come out contiguous.
        if source.is_contiguous():
            if out is not None and out.dtype == self.dtype:
                return torch.mm(source, coefficients, out=out)
            product = source @ coefficients
        else:
            if out is not None and out.dtype == self.dtype:
                torch.mm(coefficients.T, source.T, out=out.T)
                return out
            product = (coefficients.T @ source.T).T
        return product if out is None else out.copy_(product)

    def inner(self, other: "Basis") -> Tensor:
        """``Q^T Q'`` of two bases in the same space, (q, q'), float64: the cosines between their directions."""
        product = self.source.double().T @ other.source.double()
        if self.transform is not None:
            product = self.transform.T @ product
        return product if other.transform is None else product @ other.transform

    def head(self, rows: int) -> Tensor:
        """The first rows of Q, (rows, q), float64; zero where n is smaller."""
        top = self.source[:rows].double()
        top = pad(top, (0, 0, 0, rows - top.shape[0]))
        return top if self.transform is None else top @ self.transform


@dataclass(frozen=True, slots=True)
class LowRankSvd:
    """``dW = U diag(values) V^T`` with U = left Q times ``left_core`` and V likewise; m = min(out, in, rank) triplets.

    Signs are fixed by the first rows of U, so that two factorisations of one dW give the same triplets wherever its
    singular values are distinct.
    """

    left: Basis
    right: Basis
    left_core: Tensor  # (q_left, m) float64
    values: Tensor  # (m,) float64, descending
    right_core: Tensor  # (q_right, m) float64

    @property
    def size(self) -> int:
        return self.values.shape[0]

    def truncate(self, rank: int) -> "LowRankSvd":
        """The leading ``rank`` triplets: the best approximation of that rank (Eckart and Young)."""
        return LowRankSvd(
            self.left, self.right, self.left_core[:, :rank], self.values[:rank], self.right_core[:, :rank]
        )

    def overlap(self, other: "LowRankSvd") -> tuple[Tensor, Tensor]:
        """``U^T U'`` and ``V^T V'`` with the singular vectors of another update of the same layer, (m, m') float64."""
        return (
            self.left_core.T @ self.left.inner(other.left) @ other.left_core,
            self.right_core.T @ self.right.inner(other.right) @ other.right_core,
        )

    def u(self, mix: Tensor | None = None, out: Tensor | None = None) -> Tensor:
        """``U`` (out, m), or ``U @ mix`` (out, j) for a float64 ``mix`` (m, j); float32 or float64, or as ``out``."""
        return self.left.combine(self.left_core if mix is None else self.left_core @ mix, out)

    def v(self, mix: Tensor | None = None, out: Tensor | None = None) -> Tensor:
        """``V`` (in, m), or ``V @ mix`` (in, j)."""
        return self.right.combine(self.right_core if mix is None else self.right_core @ mix, out)


def orthonormalise(factors: Sequence[Tensor]) -> list[Basis]:
    """Orthonormal bases of the columns of factors (n_i, k) that share k, any floating dtypes.

    Their small matrices go through linear algebra together: for usual ranks it is calls that take the time, not
    arithmetic. Raises ``ValueError`` for entries that are not finite.
    """
    if any(factor.dtype == torch.float64 for factor in factors):
        return [_orthonormalise_in_float64(factor) for factor in factors]
    gram = torch.stack([_blocked_gram(factor.float()) for factor in factors])
    bases = _from_gram(factors, gram, _FLOAT32_GRAM_LIMIT, _MIN_FLOAT32_LENGTH)
    return [basis or _orthonormalise_in_float64(factor) for basis, factor in zip(bases, factors, strict=True)]


def _orthonormalise_in_float64(factor: Tensor) -> Basis:
    exact = factor.double()
    gram = _blocked_gram(exact)
    if not torch.isfinite(gram.diagonal()).all():
        raise ValueError("the factor holds entries that are not finite")
    (basis,) = _from_gram((factor,), gram[None], _FLOAT64_GRAM_LIMIT, min_length=0.0)
    if basis is not None:
        return basis
    lengths = gram.diagonal().sqrt()
    lengths = torch.where(lengths > 0.0, lengths, 1.0)
    q, r = torch.linalg.qr(exact / lengths)
    return Basis(q, None, r * lengths, torch.float64)


def svd(update: LoraFactors) -> LowRankSvd:
    """Thin singular value decomposition of one update, in a few passes over its factors."""
    return svd_of_sum([(1.0, update)])


def svd_of_sum(terms: Sequence[tuple[float, LoraFactors]]) -> LowRankSvd:
    """Thin singular value decomposition of ``sum(weight * dW)``; all updates have the same (out, in)."""
    factors = (
        _stacked([update.b for _, update in terms], dim=1),
        _stacked([update.a for _, update in terms], dim=0).T,
    )
    weights = [weight * update.scaling for weight, update in terms for _ in range(update.a.shape[0])]
    (decomposition,) = _svd_of_products([factors], [weights])
    return decomposition


def svd_of_each(updates: Sequence[LoraFactors]) -> list[LowRankSvd]:
    """`svd` of several updates, whose small matrices go through linear algebra together where they have one size."""
    sizes = {
        (rank := update.a.shape[0], min(rank, update.b.shape[0]), min(rank, update.a.shape[1])) for update in updates
    }
    if len(sizes) != 1:
        return [svd(update) for update in updates]
    weights = [[update.scaling] * update.a.shape[0] for update in updates]
    return _svd_of_products([(update.b, update.a.T) for update in updates], weights)


def _svd_of_products(factors: Sequence[tuple[Tensor, Tensor]], weights: Sequence[Sequence[float]]) -> list[LowRankSvd]:
    """Of ``X diag(weights) Y^T`` for pairs X (out, k), Y (in, k) with one k, min(out, k) and min(in, k)."""
    bases = orthonormalise([factor for pair in factors for factor in pair])
    left, right = bases[::2], bases[1::2]
    cores = torch.stack(
        [
            (one.r * torch.tensor(columns, dtype=torch.float64)) @ other.r.T
            for one, other, columns in zip(left, right, weights, strict=True)
        ]
    )
    left_cores, values, right_cores = torch.linalg.svd(cores, full_matrices=False)
    heads = torch.stack([one.head(_SIGN_ROWS) for one in left])
    signs = _signs(heads @ left_cores)
    left_cores, right_cores = left_cores * signs, right_cores.mT * signs
    return [LowRankSvd(*one) for one in zip(left, right, left_cores, values, right_cores, strict=True)]


def _stacked(factors: list[Tensor], dim: int) -> Tensor:
    return factors[0] if len(factors) == 1 else torch.cat(factors, dim=dim)


def _blocked_gram(factor: Tensor) -> Tensor:
    """``X^T X`` in float64, (k, k), from products over blocks of rows in the factor's own precision.

    Blocks of a fixed size also fix the order of summation, so that the result does not depend on the thread count.
    """
    whole = factor.shape[0] // _BLOCK * _BLOCK
    blocks = factor[:whole].unflatten(0, (-1, _BLOCK))
    gram = torch.bmm(blocks.mT, blocks).sum(0, dtype=torch.float64)
    rest = factor[whole:]
    return gram + rest.T @ rest


def _from_gram(factors: Sequence[Tensor], gram: Tensor, growth_limit: float, min_length: float) -> list[Basis | None]:
    """Bases by Cholesky of the Gram matrices (len(factors), k, k); None where that would lose too many digits."""
    lengths = gram.diagonal(dim1=1, dim2=2).sqrt()
    scaled = gram / (lengths[:, :, None] * lengths[:, None, :])
    lower, failed = torch.linalg.cholesky_ex(scaled)
    identity = torch.eye(gram.shape[1], dtype=gram.dtype)
    inverse = torch.linalg.solve_triangular(lower, identity.expand_as(gram), upper=False)
    growth = inverse.square().mean(dim=(1, 2)) * gram.shape[1]
    # Comparisons with NaN are false, so that lengths of zero or infinity are rejected here too.
    usable = (failed == 0) & (lengths.amin(dim=1) > min_length) & (growth <= growth_limit)
    transforms, upper = inverse.mT / lengths[:, :, None], lower.mT * lengths[:, None, :]
    bases: list[Basis | None] = []
    for factor, transform, r, is_usable, grown in zip(
        factors, transforms, upper, usable.tolist(), growth.tolist(), strict=True
    ):
        in_float32 = factor.dtype != torch.float64 and grown <= _FLOAT32_COMBINATION_LIMIT
        dtype = torch.float32 if in_float32 else torch.float64
        bases.append(Basis(factor, transform, r, dtype) if is_usable else None)
    return bases


def _signs(rows: Tensor) -> Tensor:
    """+1 or -1 for each column of matrices (..., n, m), from a fixed weighting of its entries; (..., 1, m)."""
    weighted = rows * torch.cos(torch.arange(1, rows.shape[-2] + 1, dtype=rows.dtype))[:, None]
    return torch.where(weighted.sum(-2, keepdim=True) < 0.0, -1.0, 1.0).to(rows.dtype)
