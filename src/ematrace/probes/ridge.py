"""Ridge probes solved from one Gram matrix: stream the features once, then solve any subset of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import linalg, sparse
from scipy.linalg.blas import dsyrk
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

Floats = NDArray[np.float64]
Codes = NDArray[np.intp]

BLOCK_ROWS = 4096  # rows converted at a time: bounds the float64 copy to 100 MB at 3,072 features


@dataclass(frozen=True)
class Readout:
    """A solved probe: class = argmax(x W + b), ties to the lowest class index.

    `weights` [n_features, n_classes] are in full feature coordinates: zero for columns that were left out, with
    the projection folded in. `n_parameters` counts what the probe itself fits: (m + 1) n_classes for m inputs,
    counted after the projection, which is not fitted.

    >>> import numpy as np
    >>> gram = GramMatrix(2, ["verb", "noun"])
    >>> gram.update(np.array([[0.0, 1.0], [1.0, 0.0], [1.0, 1.0]]), ["verb", "noun", "noun"])
    >>> readout = gram.solve(columns=[0])  # the second feature is left out
    >>> readout.n_parameters, readout.weights[1].tolist()
    (4, [0.0, 0.0])
    >>> readout.predict(np.array([[0.9, 0.0], [0.1, 0.0]])).tolist()
    ['noun', 'verb']
    """

    weights: Floats
    intercept: Floats
    classes: tuple[str, ...]
    n_parameters: int

    def decision(self, X: NDArray[Any]) -> Floats:
        """Scores x W + b, [n, n_classes]."""
        X = _check_width(X, self.weights.shape[0])
        blocks = [_block(X, start) @ self.weights for start in range(0, len(X), BLOCK_ROWS)]
        return np.concatenate([*blocks, np.empty((0, len(self.classes)))]) + self.intercept

    def predict_codes(self, X: NDArray[Any]) -> Codes:
        return np.asarray(self.decision(X).argmax(axis=1))

    def predict(self, X: NDArray[Any]) -> NDArray[np.str_]:
        return np.asarray(self.classes)[self.predict_codes(X)]


class GramMatrix:
    """Float64 sufficient statistics of a ridge probe: XᵀX, XᵀY (Y one-hot) and class counts.

    Σx is the row sum of XᵀY, since every row has one class. Centring happens in `solve`; features whose
    mean is many orders larger than their spread lose digits there and should be shifted first.

    >>> import numpy as np
    >>> gram = GramMatrix(2, ["verb", "noun"])
    >>> gram.update(np.array([[0.0, 1.0], [1.0, 0.0], [1.0, 1.0]]), ["verb", "noun", "noun"])
    >>> gram.solve().predict(np.array([[1.0, 0.5]]))
    array(['noun'], dtype='<U4')
    """

    def __init__(self, n_features: int, classes: Sequence[str]) -> None:
        if n_features < 1:
            raise ValueError(f"n_features must be positive, got {n_features}")
        self.classes = tuple(classes)
        if not self.classes or not all(isinstance(name, str) for name in self.classes):
            raise ValueError("classes must be a non-empty sequence of strings")
        if len(set(self.classes)) != len(self.classes):
            raise ValueError("classes must not repeat")
        self.n_features = n_features
        self.class_counts = np.zeros(len(self.classes), dtype=np.int64)
        self._code_of = {name: code for code, name in enumerate(self.classes)}
        self._xty: Floats = np.zeros((n_features, len(self.classes)))
        # Fortran order lets dsyrk add to the lower triangle in place; the upper is mirrored when needed.
        self._xtx: Floats = np.zeros((n_features, n_features), order="F")
        self._symmetric = True
        self._shared = False

    @property
    def n(self) -> int:
        """Rows seen."""
        return int(self.class_counts.sum())

    @property
    def xty(self) -> Floats:
        """XᵀY, [n_features, n_classes], read-only."""
        return _read_only(self._xty)

    @property
    def xtx(self) -> Floats:
        """XᵀX, [n_features, n_features], read-only."""
        self._mirror()
        return _read_only(self._xtx)

    def update(self, X: NDArray[Any], labels: Sequence[str] | Sequence[int] | NDArray[Any]) -> None:
        """Add rows: XᵀX += xᵀx, XᵀY += xᵀy. Invalid input leaves the statistics unchanged.

        `labels` are class names, or (faster) an integer array of class indices.
        """
        X = _check_width(X, self.n_features)
        codes = self._encode(labels)
        if len(codes) != len(X):
            raise ValueError(f"X has {len(X)} rows but there are {len(codes)} labels")
        for start in range(0, len(X), BLOCK_ROWS):
            if not np.isfinite(X[start : start + BLOCK_ROWS]).all():
                raise ValueError("X holds NaN or infinite values")
        self._own()
        for start in range(0, len(X), BLOCK_ROWS):
            block = _block(X, start)
            y = codes[start : start + len(block)]
            Y = sparse.csr_array((np.ones(len(y)), y, np.arange(len(y) + 1)), shape=(len(y), len(self.classes)))
            self._xty += np.asarray(Y.T @ block).T
            self._xtx = dsyrk(1.0, block.T, beta=1.0, c=self._xtx, lower=1, overwrite_c=1)
            self._symmetric = False
        self.class_counts += np.bincount(codes, minlength=len(self.classes))

    def relabel(self, classes: Sequence[str], name_of: Mapping[str, str]) -> GramMatrix:
        """The same rows under coarser labels: every class becomes `name_of[class]`.

        XᵀX is shared until either of the two is updated.
        """
        self._mirror()
        coarse = GramMatrix(1, classes)
        coarse.n_features = self.n_features
        try:
            codes = np.array([coarse._code_of[name_of[name]] for name in self.classes])
        except KeyError as error:
            raise ValueError(f"relabel: {error.args[0]!r} is not one of the new classes") from None
        coarse._xty = np.zeros((self.n_features, len(coarse.classes)))
        np.add.at(coarse._xty.T, codes, self._xty.T)
        coarse.class_counts = np.bincount(codes, self.class_counts, len(coarse.classes)).astype(np.int64)
        coarse._xtx, coarse._symmetric = self._xtx, True
        coarse._shared = self._shared = True
        return coarse

    def solve(
        self,
        lam: float = 0.01,
        columns: NDArray[np.integer] | Sequence[int] | None = None,
        projection: NDArray[np.floating] | None = None,
        fit_intercept: bool = True,
    ) -> Readout:
        """Ridge on one-hot targets, W = (X̃ᵀX̃ + λI)⁻¹ X̃ᵀỸ and b = ȳ - x̄ W, centred: b is not penalised.

        With `columns` X stands for X[:, columns]; with `projection` P for X[:, columns] P, whose Gram
        matrix is PᵀGP. Where the regularised matrix is singular to working precision (λ = 0 and collinear
        features) the minimum-norm solution is returned.
        """
        if not (np.isfinite(lam) and lam >= 0):
            raise ValueError(f"lam must be finite and not negative, got {lam}")
        if self.n == 0:
            raise ValueError("no rows to solve from: call update first")
        chosen = self._check_columns(columns)
        everything = len(chosen) == self.n_features and bool((chosen == np.arange(self.n_features)).all())
        self._mirror()
        A = self._xtx.copy(order="F") if everything else self._xtx[np.ix_(chosen, chosen)]
        B = self._xty[chosen]
        x_mean, y_mean = B.sum(axis=1) / self.n, self.class_counts / self.n
        if fit_intercept:
            A -= self.n * np.outer(x_mean, x_mean)
            B -= self.n * np.outer(x_mean, y_mean)
        m = len(chosen)
        if projection is None:
            W = _solve_regularised(A, B, lam, self.n)
        else:
            P = np.asarray(projection, dtype=np.float64)
            if P.ndim != 2 or P.shape[0] != len(chosen) or P.shape[1] < 1:
                raise ValueError(f"projection must be [{len(chosen)}, m], got {list(P.shape)}")
            if not np.isfinite(P).all():
                raise ValueError("projection holds NaN or infinite values")
            m = P.shape[1]
            W = P @ _solve_regularised(P.T @ (A @ P), P.T @ B, lam, self.n)
        weights = np.zeros((self.n_features, len(self.classes)))
        weights[chosen] = W
        intercept = y_mean - x_mean @ W if fit_intercept else np.zeros(len(self.classes))
        return Readout(weights, intercept, self.classes, (m + int(fit_intercept)) * len(self.classes))

    def _encode(self, labels: Sequence[str] | Sequence[int] | NDArray[Any]) -> Codes:
        given = np.asarray(labels)
        if given.ndim != 1:
            raise ValueError(f"labels must be one-dimensional, got {given.ndim} dimensions")
        if given.dtype.kind in "iu":
            codes = given.astype(np.intp)
            if codes.size and not 0 <= codes.min() <= codes.max() < len(self.classes):
                raise ValueError(f"label codes must lie in 0..{len(self.classes) - 1}")
            return codes
        names = given.tolist()
        try:
            return np.array([self._code_of[name] for name in names], dtype=np.intp)
        except (KeyError, TypeError):
            unknown = next(name for name in names if not isinstance(name, str) or name not in self._code_of)
            raise ValueError(f"label {unknown!r} is not one of the classes") from None

    def _check_columns(self, columns: NDArray[np.integer] | Sequence[int] | None) -> NDArray[np.intp]:
        if columns is None:
            return np.arange(self.n_features)
        chosen = np.asarray(columns)
        if chosen.ndim != 1 or chosen.size == 0 or chosen.dtype.kind not in "iu":
            raise ValueError("columns must be a non-empty one-dimensional array of feature indices")
        if not 0 <= chosen.min() <= chosen.max() < self.n_features:
            raise ValueError(f"columns must lie in 0..{self.n_features - 1}")
        if len(np.unique(chosen)) != len(chosen):
            raise ValueError("columns must not repeat")
        return chosen.astype(np.intp)

    def _own(self) -> None:
        """Copy XᵀX before it is changed in place if another GramMatrix shares it."""
        if self._shared:
            self._xtx, self._shared = self._xtx.copy(order="F"), False

    def _mirror(self) -> None:
        if self._symmetric:
            return
        G, step = self._xtx, 256
        for start in range(0, self.n_features, step):
            stop = min(start + step, self.n_features)
            square = G[start:stop, start:stop]
            square[:] = np.tril(square) + np.tril(square, -1).T
            G[start:stop, stop:] = G[stop:, start:stop].T
        self._symmetric = True


class ReadoutBank:
    """Several readouts of the same features, applied in one matmul with their stacked weights.

    >>> import numpy as np
    >>> gram = GramMatrix(2, ["verb", "noun"])
    >>> gram.update(np.array([[0.0, 1.0], [1.0, 0.0], [1.0, 1.0]]), ["verb", "noun", "noun"])
    >>> bank = ReadoutBank({"both": gram.solve(), "second": gram.solve(columns=[1])})
    >>> {name: codes.tolist() for name, codes in bank.predict_codes(np.array([[1.0, 1.0], [0.0, 1.0]])).items()}
    {'both': [1, 0], 'second': [1, 1]}
    """

    def __init__(self, readouts: Mapping[str, Readout]) -> None:
        self.readouts = dict(readouts)
        if not self.readouts:
            raise ValueError("a bank needs at least one readout")
        if len(widths := {readout.weights.shape[0] for readout in self.readouts.values()}) != 1:
            raise ValueError(f"readouts of one bank must read the same features, got widths {sorted(widths)}")
        self.n_features = widths.pop()

    def predict_codes(self, X: NDArray[Any]) -> dict[str, Codes]:
        """Class indices of every readout: argmax(x [W_1 ... W_R] + [b_1 ... b_R]) within each readout's part.

        In float64, though float32 takes half the time: the large opposite weights of collinear features would lose
        more than the 6 digits that most scores differ by.
        """
        X = _check_width(X, self.n_features)
        W = np.hstack([r.weights for r in self.readouts.values()])
        b = np.hstack([r.intercept for r in self.readouts.values()])
        codes = {name: np.empty(len(X), dtype=np.intp) for name in self.readouts}
        for start in range(0, len(X), BLOCK_ROWS):
            scores = _block(X, start) @ W + b
            left = 0
            for name, readout in self.readouts.items():
                right = left + len(readout.classes)
                codes[name][start : start + BLOCK_ROWS] = scores[:, left:right].argmax(axis=1)
                left = right
        return codes


class RidgeProbe(ClassifierMixin, BaseEstimator):
    """Ridge regression on one-hot class targets, argmax decision; scikit-learn's estimator contract.

    The probe that `GramMatrix.solve` gives the experiments, always solved in float64. scikit-learn's RidgeClassifier
    decides alike, but solves float32 features in float32.

    `coef_` is [n_classes, n_features] and `intercept_` [n_classes], also for two classes. As scikit-learn
    asks, `decision_function` of two classes is one column, score(second) - score(first).

    >>> import numpy as np
    >>> from ematrace.baselines.onehot import current_token, ema_of_onehots
    >>> from ematrace.grammar import load_grammar
    >>> grammar = load_grammar("A")
    >>> sentences = grammar.sample(200, seed=0)
    >>> words, roles = [s.words for s in sentences], np.concatenate([s.roles for s in sentences])
    >>> for features in (current_token(words, grammar.words), ema_of_onehots(words, grammar.words)):
    ...     print(f"{RidgeProbe().fit(features[:1000], roles[:1000]).score(features[1000:], roles[1000:]):.1f}")
    0.7
    1.0
    """

    def __init__(self, lam: float = 0.01, fit_intercept: bool = True) -> None:
        self.lam = lam
        self.fit_intercept = fit_intercept

    def fit(self, X: ArrayLike, y: ArrayLike) -> RidgeProbe:
        """W = argmin |Y - XW - b|² + λ|W|², Y one-hot."""
        X_, y_ = validate_data(self, X, y, dtype=[np.float64, np.float32])
        check_classification_targets(y_)
        self.classes_, codes = np.unique(y_, return_inverse=True)
        shift = X_.mean(axis=0, dtype=np.float64) if self.fit_intercept else np.zeros(X_.shape[1])
        gram = GramMatrix(X_.shape[1], [str(code) for code in range(len(self.classes_))])
        for start in range(0, len(X_), BLOCK_ROWS):
            gram.update(_block(X_, start) - shift, codes[start : start + BLOCK_ROWS])
        readout = gram.solve(self.lam, fit_intercept=self.fit_intercept)
        self.coef_ = readout.weights.T
        self.intercept_ = readout.intercept - shift @ readout.weights
        return self

    def decision_function(self, X: ArrayLike) -> Floats:
        """Scores [n, n_classes]; [n] for two classes."""
        scores = self._scores(X)
        return scores[:, 1] - scores[:, 0] if len(self.classes_) == 2 else scores

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """The class of the largest score, ties to the first."""
        scores = self._scores(X)
        return np.asarray(self.classes_[scores.argmax(axis=1)])

    def _scores(self, X: ArrayLike) -> Floats:
        check_is_fitted(self)
        X_ = validate_data(self, X, dtype=[np.float64, np.float32], reset=False)
        blocks = [_block(X_, start) @ self.coef_.T for start in range(0, len(X_), BLOCK_ROWS)]
        return np.asarray(np.concatenate(blocks) + self.intercept_)


def _solve_regularised(A: Floats, B: Floats, lam: float, n_rows: int) -> Floats:
    """(A + λI)⁻¹B by Cholesky; where that is singular to working precision, its pseudo-inverse times B."""
    A[np.diag_indices_from(A)] += lam
    tolerance = (len(A) + n_rows) * np.finfo(np.float64).eps  # the rounding of a sum over n_rows
    try:
        factor = linalg.cho_factor(A, lower=True)
        pivots = np.diagonal(factor[0])
        # (max / min pivot)² bounds the condition number from below.
        if (pivots.min() / pivots.max()) ** 2 > tolerance:
            return np.asarray(linalg.cho_solve(factor, B))
    except linalg.LinAlgError:
        pass
    eigenvalues, Q = linalg.eigh(A)
    kept = eigenvalues > tolerance * max(eigenvalues[-1], 0.0)
    Q = Q[:, kept]
    return np.asarray(Q @ ((Q.T @ B) / eigenvalues[kept, None]))


def _check_width(X: NDArray[Any], n_features: int) -> NDArray[Any]:
    X = np.asarray(X)
    if X.ndim != 2 or X.shape[1] != n_features:
        raise ValueError(f"X must be [rows, {n_features}], got {list(X.shape)}")
    if X.dtype.kind not in "fiub":
        raise ValueError(f"X must hold real numbers, got dtype {X.dtype}")
    return X


def _block(X: NDArray[Any], start: int) -> Floats:
    return np.ascontiguousarray(X[start : start + BLOCK_ROWS], dtype=np.float64)


def _read_only(array: Floats) -> Floats:
    view = array.view()
    view.flags.writeable = False
    return view
