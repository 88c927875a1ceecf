// Small dense matrices, row by row.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace orca::tune {

/// A square matrix.
class Matrix {
 public:
  Matrix() = default;
  explicit Matrix(std::size_t size) : size_(size), values_(size * size) {}

  static Matrix Identity(std::size_t size);

  std::size_t size() const { return size_; }
  double& operator()(std::size_t row, std::size_t column) { return values_[row * size_ + column]; }
  double operator()(std::size_t row, std::size_t column) const {
    return values_[row * size_ + column];
  }
  double* row(std::size_t index) { return values_.data() + index * size_; }
  const double* row(std::size_t index) const { return values_.data() + index * size_; }

 private:
  std::size_t size_ = 0;
  std::vector<double> values_;
};

/// Turns a symmetric matrix into its eigenvectors, one a column, and returns the eigenvalues
/// (Jacobi).
std::vector<double> Eigen(Matrix& matrix);

/// Turns a symmetric matrix into its lower Cholesky factor. False: it is not positive definite.
bool Cholesky(Matrix& matrix);
/// Solves L y = b in place, for a lower factor.
void SolveLower(const Matrix& lower, std::span<double> b);
/// Solves L' y = b in place.
void SolveUpper(const Matrix& lower, std::span<double> b);
/// The inverse of a lower factor; row k has its column k.
Matrix InverseColumns(const Matrix& lower);

}  // namespace orca::tune
