"""Exact algebra on low-rank updates ``dW = scaling * B A`` that never forms an (out, in) matrix.

A tall factor X of shape (n, k) is written ``X = Q R`` with orthonormal columns in Q. Two routes lead there:

* Cholesky of the Gram matrix: after scaling columns to unit length, ``X^T X = L L^T`` in float64, ``Q = X D^-1 L^-T``.
  One pass over X, and Q stays implicit, so that a later combination ``Q C`` is one more pass. Q is orthonormal up to
  ``eps64 * cond^2``, hence this route is taken while the condition number of the scaled X is known to be small.
* Householder QR in float64 otherwise: rank-deficient, zero or nearly collinear columns.

With ``B = Q_b R_b`` and ``A^T = Q_a R_a`` the singular value decomposition of dW is that of the small core
``scaling * R_b R_a^T``. Scaling columns first makes the result independent of how magnitude is spread over the columns
of the two factors.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from verl_populora.adapters.weights import LoraFactors

# The Gram route loses cond^2 * 1e-16 of orthonormality: 1e-8 at the limit. Applying a transform in float32 loses
# cond * 6e-8, which a factor below the second limit keeps near 5e-7.
_GRAM_CONDITION_LIMIT = 1e4
_FLOAT32_CONDITION_LIMIT = 8.0

# Rows of U that decide the sign of a singular vector, which the decomposition itself leaves open.
_SIGN_ROWS = 64


@dataclass(frozen=True, slots=True)
class Basis:
    """``X = Q r`` with ``Q = source @ transform`` (``source`` itself where transform is None), Q^T Q = 1."""

    source: Tensor  # (n, k) the factor, or (n, q) Q in float64
    transform: Tensor | None  # (k, q) float64
    r: Tensor  # (q, k) float64, q = min(n, k)
    dtype: torch.dtype  # in which combinations are computed

    def combine(self, coefficients: Tensor) -> Tensor:
        """``Q @ coefficients``, (n, m), in ``self.dtype``; coefficients (q, m) in float64."""
        if self.transform is not None:
            coefficients = self.transform @ coefficients
        source, coefficients = self.source.to(self.dtype), coefficients.to(self.dtype)
        # The product takes the memory layout of the factor, so that the rows of a child's ``a`` come out contiguous.
        return source @ coefficients if source.is_contiguous() else (coefficients.T @ source.T).T

    def inner(self, other: "Basis") -> Tensor:
        """``Q^T Q'`` of two bases in the same space, (q, q'), float64: the cosines between their directions."""
        product = self.source.double().T @ other.source.double()
        if self.transform is not None:
            product = self.transform.T @ product
        return product if other.transform is None else product @ other.transform

    def head(self, rows: int) -> Tensor:
        """The first rows of Q, (min(rows, n), q), float64."""
        top = self.source[:rows].double()
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

    def u(self, mix: Tensor | None = None) -> Tensor:
        """``U`` (out, m), or ``U @ mix`` (out, j) for a float64 ``mix`` (m, j); float32 or float64."""
        return self.left.combine(self.left_core if mix is None else self.left_core @ mix)

    def v(self, mix: Tensor | None = None) -> Tensor:
        """``V`` (in, m), or ``V @ mix`` (in, j)."""
        return self.right.combine(self.right_core if mix is None else self.right_core @ mix)


def orthonormalise(factor: Tensor) -> Basis:
    """The orthonormal basis of the columns of ``factor`` (n, k), any floating dtype.

    Raises ``ValueError`` for entries that are not finite.
    """
    exact = factor.double()
    gram = exact.T @ exact
    scale = gram.diagonal().sqrt()
    if not torch.isfinite(scale).all():
        raise ValueError("the factor holds entries that are not finite")
    scale = torch.where(scale > 0.0, scale, 1.0)
    lower, failed = torch.linalg.cholesky_ex(gram / torch.outer(scale, scale))
    if not failed:
        inverse = torch.linalg.solve_triangular(lower, torch.eye(len(scale), dtype=lower.dtype), upper=False)
        condition = _condition(lower, inverse)
        if condition <= _GRAM_CONDITION_LIMIT:
            exact_enough = factor.dtype != torch.float64 and condition <= _FLOAT32_CONDITION_LIMIT
            dtype = torch.float32 if exact_enough else torch.float64
            return Basis(factor, inverse.T / scale[:, None], lower.T * scale, dtype)
    q, r = torch.linalg.qr(exact / scale)
    return Basis(q, None, r * scale, torch.float64)


def svd(update: LoraFactors) -> LowRankSvd:
    """Thin singular value decomposition of one update, in a few passes over its factors."""
    return svd_of_sum([(1.0, update)])


def svd_of_sum(terms: Sequence[tuple[float, LoraFactors]]) -> LowRankSvd:
    """Thin singular value decomposition of ``sum(weight * dW)``; all updates have the same (out, in)."""
    left = orthonormalise(torch.cat([update.b for _, update in terms], dim=1))
    right = orthonormalise(torch.cat([update.a for _, update in terms], dim=0).T)
    weights = torch.cat(
        [
            torch.full((update.b.shape[1],), weight * update.scaling, dtype=torch.float64)
            for weight, update in terms
        ]
    )
    left_core, values, right_core = torch.linalg.svd((left.r * weights) @ right.r.T, full_matrices=False)
    signs = _signs(left.head(_SIGN_ROWS) @ left_core)
    return LowRankSvd(left, right, left_core * signs, values, right_core.T * signs)


def _condition(lower: Tensor, inverse: Tensor) -> float:
    """An estimate of the condition number of a triangular matrix with unit rows, at least 1.

    The Frobenius bound ``|L| |L^-1| / k`` is exact for orthogonal matrices and never below ``cond / k``.
    """
    return float(torch.linalg.matrix_norm(lower) * torch.linalg.matrix_norm(inverse)) / lower.shape[0]


def _signs(rows: Tensor) -> Tensor:
    """+1 or -1 for each column, from a fixed weighting of its entries."""
    weights = torch.cos(torch.arange(1, rows.shape[0] + 1, dtype=rows.dtype))
    return torch.where(weights @ rows < 0.0, -1.0, 1.0).to(rows.dtype)
