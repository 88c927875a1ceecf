// What a study searches: parameters, their laws and their conditions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "orca/core/export.h"

namespace orca::tune {

/// A value of a configuration.
using Value = std::variant<std::int64_t, double, std::string, bool>;

/// How a parameter is drawn when nothing is known about it.
enum class Law {
  kUniform,     ///< low + U * (high - low)
  kLogUniform,  ///< exp of a uniform number between the logarithms of the ends
  kNormal,      ///< mean `low`, standard deviation `high`; has no ends
  kInteger,     ///< low .. high - 1
  kLogInteger,  ///< floor of a log-uniform number in [low, high)
  kCategory,    ///< an index below `choices`
  kGrid,        ///< as kCategory, but every value comes as often as every other
};

/// One number of a point. Made by the functions below.
struct ORCA_API Parameter {
  std::string name;  ///< Its path, "model/layers/0/width".
  Law law = Law::kUniform;
  double low = 0;
  double high = 1;
  double step = 0;  ///< Values are rounded to a multiple of it, half to even; 0: they are not.
  std::int64_t choices = 0;
  std::vector<Value> values;       ///< Of the categories; may be empty when the caller keeps them.
  std::string parent;              ///< It exists only where this parameter ...
  std::int64_t parent_choice = 0;  ///< ... has this category. No parent: always.

  bool is_category() const { return law == Law::kCategory || law == Law::kGrid; }
  bool is_integer() const { return law == Law::kInteger || law == Law::kLogInteger; }
  bool is_log() const { return law == Law::kLogUniform || law == Law::kLogInteger; }
  /// Whether it has finitely many numbers as values: an integer, or one with a step and ends.
  bool is_stepped() const { return is_integer() || (step > 0 && law != Law::kNormal); }
  /// The distance of two values of a stepped one.
  double spacing() const { return step > 0 ? step : 1; }
  /// The smallest and the largest value that are drawn; kNormal has none.
  double first() const;
  double last() const;
  /// How many values there are; infinity when they are not stepped or have no ends.
  double Cardinality() const;

  /// The value of a stepped one that is nearest.
  double Stepped(double value) const;
  /// The value at `u` in [0, 1) of the law: a uniform `u` gives a draw.
  double Quantile(double u) const;
  /// `value` in [0, 1] as models see it: logarithms first, every stepped value in the middle of an
  /// equal share (of the logarithms when is_log), a normal one by its distribution function.
  double ToUnit(double value) const;
  /// The value at `u` of that scale.
  double FromUnit(double u) const;

  /// Throws kInvalidArgument when a trial cannot have this value.
  void Check(double value) const;
  /// What the number stands for.
  Value Decode(double value) const;
  /// The number that stands for `value`; throws kInvalidArgument when there is none.
  double Encode(const Value& value) const;
};

/// [low, high).
ORCA_API Parameter Uniform(std::string name, double low, double high);
/// Rounded to multiples of `step`; both ends come with half the weight of the others. The ends must
/// be multiples of `step`.
ORCA_API Parameter QUniform(std::string name, double low, double high, double step);
ORCA_API Parameter LogUniform(std::string name, double low, double high);
ORCA_API Parameter QLogUniform(std::string name, double low, double high, double step);
ORCA_API Parameter Normal(std::string name, double mean, double deviation);
ORCA_API Parameter QNormal(std::string name, double mean, double deviation, double step);
/// low .. high - 1.
ORCA_API Parameter Integer(std::string name, std::int64_t low, std::int64_t high);
/// The ends are first moved inwards to multiples of `step`; then an integer of [low, high) is
/// rounded.
ORCA_API Parameter QInteger(std::string name, std::int64_t low, std::int64_t high,
                            std::int64_t step);
/// low .. high - 1, small ones more often.
ORCA_API Parameter LogInteger(std::string name, std::int64_t low, std::int64_t high);
ORCA_API Parameter QLogInteger(std::string name, std::int64_t low, std::int64_t high,
                               std::int64_t step);
ORCA_API Parameter Choice(std::string name, std::vector<Value> values);
/// Categories whose values the caller keeps.
ORCA_API Parameter Choice(std::string name, std::int64_t choices);
ORCA_API Parameter Grid(std::string name, std::vector<Value> values);
ORCA_API Parameter Grid(std::string name, std::int64_t choices);
/// The same parameter, only where `parent` has the category `choice`.
ORCA_API Parameter When(Parameter parameter, std::string parent, std::int64_t choice);

/// An ordered choice of `min` .. `max` - 1 of `choices` things, as parameters: how many
/// ("name/#size"), and a key for each thing ("name/#0" ...). The things with the smallest keys are
/// taken, in the order of the keys.
ORCA_API std::vector<Parameter> Subset(const std::string& name, std::int64_t choices,
                                       std::int64_t min, std::int64_t max);

/// One number a parameter, in their order: a value, or the index of a category. NaN: it does not
/// exist here.
using Point = std::vector<double>;

/// All parameters of a study. Immutable, so any number of threads may use it.
class ORCA_API Space {
 public:
  /// Throws kInvalidArgument for no parameter, two of one name, and a parent that is not a category
  /// or does not come before.
  explicit Space(std::vector<Parameter> parameters);

  const std::vector<Parameter>& parameters() const { return parameters_; }
  std::size_t size() const { return parameters_.size(); }
  const Parameter& operator[](std::size_t index) const { return parameters_[index]; }
  /// Throws kInvalidArgument, naming the nearest known ones, when there is none.
  std::size_t Index(std::string_view name) const;
  /// The parent's index, or -1.
  std::int64_t parent(std::size_t index) const { return parents_[index]; }
  /// Whether the parameter exists at `point`, whose numbers before `index` are set.
  bool IsActive(const Point& point, std::size_t index) const;

  /// The random point of trial `trial`. Every parameter has random numbers of its own, so that
  /// neither order nor other parameters matter. Grid parameters count: the first by name is the
  /// fastest.
  Point Draw(std::uint64_t seed, std::int64_t trial) const;
  /// Sets what is NaN and exists as Draw does, and to NaN what does not exist.
  void Complete(Point& point, std::uint64_t seed, std::int64_t trial) const;
  /// As Draw; `attempt` makes another point of the same trial.
  Point Redraw(std::uint64_t seed, std::int64_t trial, std::uint32_t attempt) const;
  /// Throws kInvalidArgument when a trial cannot have this point.
  void Check(const Point& point) const;

  bool has_grid() const { return !grid_.empty(); }
  /// The product of the sizes of all grid parameters; 1 without.
  std::int64_t grid_cells() const { return grid_cells_; }
  /// How many points there are; infinity when a parameter is continuous.
  double Cardinality() const { return CountBelow(-1, 0); }
  /// Point number `index` of a finite space, in [0, Cardinality()).
  Point Enumerate(std::int64_t index) const;

 private:
  // Conditions make trees of parameters: below a choice are those that exist with it, below -1 all
  // that always exist.
  bool IsBelow(std::size_t index, std::int64_t parent, std::int64_t choice) const;
  double CountBelow(std::int64_t parent, std::int64_t choice) const;
  void EnumerateBelow(std::int64_t parent, std::int64_t choice, std::int64_t index,
                      Point& point) const;

  std::vector<Parameter> parameters_;
  std::vector<std::int64_t> parents_;
  std::vector<double> counts_;  // Of the points of each parameter's tree.
  std::vector<std::uint64_t> purposes_;
  std::vector<std::size_t> grid_;  // Sorted by name.
  std::int64_t grid_cells_ = 1;
};

}  // namespace orca::tune
