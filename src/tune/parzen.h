// The two densities of TPE over parameters that exist together.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "orca/tune/space.h"
#include "tune/loops.h"
#include "tune/normal.h"
#include "tune/philox.h"

namespace orca::tune {

/// Two mixtures of kernels: l of the best trials, and g of the rest.
///
/// Both are a function of the trials and of which are the best, to the last bit, whatever the order
/// in which they became so. But little of them changes from one split to the next: a kernel depends
/// on its neighbours only, so sorted columns and kernels are kept, and brought up to date.
/// Not thread-safe.
class Parzen {
 public:
  /// Of `parameters`, places in `space`, which must outlive this.
  Parzen(const Space& space, std::span<const std::size_t> parameters, double prior_weight);

  /// A trial with these parameters; `number` grows from trial to trial.
  void Add(std::uint32_t number, const Point& point);
  /// Brings l and g up to date; `is_best` has an entry for the number of each trial.
  void Split(std::span<const std::uint8_t> is_best);

  /// Points to look at: `count` of them, drawn from l.
  void DrawQueries(Stream& random, std::size_t count);
  /// Points to look at: these.
  void SetQueries(std::span<const Point> points);
  /// log l - log g of each of them. Until the next call.
  std::span<const double> LogRatios();
  /// Writes the parameters of one of them to `point`.
  void Get(std::size_t query, Point& point) const;

 private:
  enum Side : std::uint8_t { kBest, kRest, kNeither };

  // A parameter on the scale of the model: the logarithm, or the number itself. Normal ones are
  // seen by their distribution function.
  struct Dimension {
    Dimension(const Space& space, std::size_t at);
    bool is_category() const { return parameter->is_category(); }
    bool is_stepped() const { return parameter->is_stepped(); }
    bool is_smooth() const { return !is_category() && !is_stepped(); }
    double Scale(double value) const;
    double Unscale(double x) const;

    const Parameter* parameter;
    std::size_t index;  // In the space.
    double low = 0;     // With half a step around, as `high`.
    double high = 1;
  };

  // A kernel in one dimension; all but sigma follows from it.
  struct Kernel {
    Kernel(const Dimension& dimension, double x, double width);

    double sigma;
    double inverse;  // 1 / (sqrt(2) * sigma)
    double factor;   // Logarithm of what the kernel is divided by, negative.
    Truncation cut;
  };

  struct Column {
    double middle() const { return 0.5 * (dimension.low + dimension.high); }
    /// Where a row is in the order, or belongs.
    std::size_t Find(Side side, std::uint32_t row) const;

    Dimension dimension;
    Kernel prior;
    std::vector<double> x = {};        // Of each row. A category is its index.
    std::vector<Kernel> kernels = {};  // Of each row, in the mixture where it is.
    std::array<std::vector<std::uint32_t>, 2> order = {};  // The rows of each side, by x, then row.
  };

  // Kernel 0 is the prior, kernel k + 1 that of rows[k]; then padding. In g every row has its
  // kernel; of those that are in l it weighs nothing.
  struct Mixture {
    std::vector<std::uint32_t> rows = {};
    std::size_t observed = 0;          // How many of the rows count.
    double divisor = 0;                // No kernel is narrower than the range divided by it.
    std::vector<double> base = {};     // Logarithm of the factors.
    std::vector<double> weights = {};  // By age, up to 1.
    double total = 0;                  // Of all weights.
    std::vector<double> tiles = {};    // As in Kernels.
  };

  struct RowMove {
    std::uint32_t row;
    Side from;
    Side to;
  };

  // Kernels of a stepped dimension with the same place and width have the same masses.
  struct Twins {
    std::vector<std::uint32_t> of_kernel = {};
    std::vector<std::pair<double, double>> all = {};  // x, sigma
  };

  void FindMoves(std::span<const std::uint8_t> is_best);
  void Arrange();
  void Sort(Column& column);
  void Insert(Column& column, Side side, std::uint32_t row);
  void Erase(Column& column, Side side, std::uint32_t row);
  void SetWidth(Column& column, Side side, std::size_t place);
  void SetWidths(Column& column, Side side);
  void Resize(Mixture& mixture);
  void Write(Mixture& mixture, std::size_t kernel, std::uint32_t row);
  void Weigh(Side side);
  double DrawCategory(const Column& column, double own_category, double u) const;
  double DrawNumber(const Column& column, std::uint32_t row, double u) const;
  void Score(Side side);
  void AddCategories(std::size_t dimension, const Mixture& mixture);
  void AddSteps(std::size_t dimension, Side side);
  Twins FindTwins(const Column& column, Side side) const;

  const double prior_weight_;
  const Loops& loops_;
  std::vector<Column> columns_;  // Smooth ones come first.
  std::size_t smooth_ = 0;       // How many those are.

  std::vector<std::uint32_t> numbers_;  // Of the trial of each row.
  std::vector<Side> sides_;             // Of each row.
  std::vector<std::uint32_t> kernels_;  // Of each row, in the mixture of its side.
  std::array<Mixture, 2> mixtures_;

  // Scratch, kept for its memory.
  std::vector<RowMove> moves_;
  std::vector<std::uint32_t> changed_;  // Rows with a kernel that is not what it was.
  std::vector<double> cumulative_;
  std::vector<double> queries_;  // [query][dimension]
  std::vector<double> terms_;    // [query][kernel]
  std::array<std::vector<double>, 2> scores_;
};

}  // namespace orca::tune
