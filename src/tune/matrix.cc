#include "tune/matrix.h"

#include <cmath>

#include "tune/loops.h"

namespace orca::tune {
namespace {

// One rotation that makes element (p, q) zero.
void Rotate(Matrix& a, Matrix& vectors, std::size_t p, std::size_t q) {
  const std::size_t n = a.size();
  const double theta = (a(q, q) - a(p, p)) / (2 * a(p, q));
  const double t = (theta >= 0 ? 1 : -1) / (std::abs(theta) + std::sqrt(theta * theta + 1));
  const double c = 1 / std::sqrt(t * t + 1);
  const double s = t * c;
  for (std::size_t k = 0; k < n; ++k) {
    const double kp = a(k, p);
    const double kq = a(k, q);
    a(k, p) = c * kp - s * kq;
    a(k, q) = s * kp + c * kq;
  }
  for (std::size_t k = 0; k < n; ++k) {
    const double pk = a(p, k);
    const double qk = a(q, k);
    a(p, k) = c * pk - s * qk;
    a(q, k) = s * pk + c * qk;
    const double vp = vectors(k, p);
    const double vq = vectors(k, q);
    vectors(k, p) = c * vp - s * vq;
    vectors(k, q) = s * vp + c * vq;
  }
}

}  // namespace

Matrix Matrix::Identity(std::size_t size) {
  Matrix matrix(size);
  for (std::size_t i = 0; i < size; ++i) matrix(i, i) = 1;
  return matrix;
}

std::vector<double> Eigen(Matrix& matrix) {
  const std::size_t n = matrix.size();
  Matrix vectors = Matrix::Identity(n);
  constexpr int kSweeps = 60;  // Six are usual.
  for (int sweep = 0; sweep < kSweeps; ++sweep) {
    bool is_diagonal = true;
    for (std::size_t p = 0; p < n; ++p) {
      for (std::size_t q = p + 1; q < n; ++q) {
        const double size = std::sqrt(std::abs(matrix(p, p) * matrix(q, q)));
        if (std::abs(matrix(p, q)) <= 1e-16 * size || matrix(p, q) == 0) continue;
        Rotate(matrix, vectors, p, q);
        is_diagonal = false;
      }
    }
    if (is_diagonal) break;
  }
  std::vector<double> values;
  for (std::size_t i = 0; i < n; ++i) values.push_back(matrix(i, i));
  matrix = std::move(vectors);
  return values;
}

bool Cholesky(Matrix& matrix) {
  const auto dot = FastestLoops().dot;
  const std::size_t n = matrix.size();
  for (std::size_t i = 0; i < n; ++i) {
    double* const row = matrix.row(i);
    for (std::size_t j = 0; j <= i; ++j) {
      const double* const other = matrix.row(j);
      const double rest = row[j] - dot(row, other, j);
      if (j < i) {
        row[j] = rest / other[j];
      } else {
        if (!(rest > 0)) return false;
        row[i] = std::sqrt(rest);
      }
    }
    for (std::size_t j = i + 1; j < n; ++j) row[j] = 0;
  }
  return true;
}

Matrix InverseColumns(const Matrix& lower) {
  const auto dot = FastestLoops().dot;
  const std::size_t n = lower.size();
  Matrix columns(n);
  for (std::size_t k = 0; k < n; ++k) {
    double* const out = columns.row(k);
    out[k] = 1 / lower(k, k);
    for (std::size_t i = k + 1; i < n; ++i) {
      out[i] = -dot(lower.row(i) + k, out + k, i - k) / lower(i, i);
    }
  }
  return columns;
}

void SolveLower(const Matrix& lower, std::span<double> b) {
  const auto dot = FastestLoops().dot;
  for (std::size_t i = 0; i < b.size(); ++i) {
    b[i] = (b[i] - dot(lower.row(i), b.data(), i)) / lower(i, i);
  }
}

void SolveUpper(const Matrix& lower, std::span<double> b) {
  for (std::size_t i = b.size(); i-- > 0;) {
    b[i] /= lower(i, i);
    const double* const row = lower.row(i);
    for (std::size_t k = 0; k < i; ++k) b[k] -= row[k] * b[i];
  }
}

}  // namespace orca::tune
