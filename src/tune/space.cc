#include "orca/tune/space.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <utility>

#include "orca/core/error.h"
#include "tune/normal.h"
#include "tune/philox.h"

namespace orca::tune {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kLargestExact = 0x1p53;

[[noreturn]] void Refuse(const std::string& message) {
  throw Error(Code::kInvalidArgument, message);
}

// Half to even, as numpy.
double RoundTo(double value, double step) { return std::nearbyint(value / step) * step; }

bool IsMultiple(double value, double step) {
  const double times = value / step;
  return std::abs(times - std::nearbyint(times)) <= 1e-8 + 1e-9 * std::abs(times);
}

void CheckEnds(const Parameter& p) {
  if (!std::isfinite(p.low) || !std::isfinite(p.high) || p.low >= p.high) {
    Refuse(fmt::format("{}: the range [{}, {}) is empty; give finite ends, the lower one first",
                       p.name, p.low, p.high));
  }
  if (!std::isfinite(p.high - p.low)) {
    Refuse(
        fmt::format("{}: the range [{}, {}) is wider than the largest number, {}; give nearer ends",
                    p.name, p.low, p.high, std::numeric_limits<double>::max()));
  }
  if (p.is_log() && p.low <= 0) {
    Refuse(fmt::format("{}: lower end {} of a logarithmic range is not positive", p.name, p.low));
  }
}

void CheckStep(const Parameter& p, bool divides) {
  if (!std::isfinite(p.step) || p.step <= 0) {
    Refuse(fmt::format("{}: step {} is not positive", p.name, p.step));
  }
  if (!divides) return;
  for (const double end : {p.low, p.high}) {
    if (!IsMultiple(end, p.step)) {
      Refuse(fmt::format(
          "{}: end {} is not a multiple of the step {}; give ends that are, or another step",
          p.name, end, p.step));
    }
  }
}

Parameter Continuous(std::string name, Law law, double low, double high) {
  Parameter p{.name = std::move(name), .law = law, .low = low, .high = high};
  CheckEnds(p);
  return p;
}

Parameter WithStep(Parameter p, double step) {
  p.step = step;
  CheckStep(p, true);
  return p;
}

Parameter Whole(std::string name, Law law, std::int64_t low, std::int64_t high, std::int64_t step) {
  Parameter p =
      Continuous(std::move(name), law, static_cast<double>(low), static_cast<double>(high));
  if (std::abs(p.low) > kLargestExact || std::abs(p.high) > kLargestExact) {
    Refuse(fmt::format("{}: the ends {} and {} must be within 2^53", p.name, low, high));
  }
  p.step = static_cast<double>(step);
  CheckStep(p, false);
  if (step > 1) {
    p.low = std::ceil(p.low / p.step) * p.step;
    p.high = std::floor(p.high / p.step) * p.step;
    if (p.low >= p.high) {
      Refuse(
          fmt::format("{}: there are no two multiples of {} in [{}, {}]", p.name, step, low, high));
    }
    if (p.is_log() && p.low <= 0) p.low = p.step;
  }
  return p;
}

Parameter Categories(std::string name, Law law, std::int64_t choices) {
  if (choices < 1) {
    Refuse(fmt::format("{}: there is nothing to choose from; give at least one value", name));
  }
  return Parameter{.name = std::move(name), .law = law, .choices = choices};
}

}  // namespace

double Parameter::first() const {
  if (is_category()) return 0;
  if (law == Law::kNormal) return -kInfinity;
  return low;
}

double Parameter::last() const {
  if (is_category()) return static_cast<double>(choices - 1);
  if (law == Law::kNormal) return kInfinity;
  if (is_integer()) return std::max(low, RoundTo(high - 1, spacing()));
  return high;
}

double Parameter::Cardinality() const {
  if (is_category()) return static_cast<double>(choices);
  if (!is_stepped()) return kInfinity;
  return std::nearbyint((last() - first()) / spacing()) + 1;
}

double Parameter::Quantile(double u) const {
  double value = 0;
  switch (law) {
    case Law::kUniform:
      value = low + u * (high - low);
      if (value >= high) value = std::nextafter(high, low);
      break;
    case Law::kLogUniform:
      value = std::exp(std::log(low) + u * (std::log(high) - std::log(low)));
      value = std::clamp(value, low, std::nextafter(high, low));
      break;
    case Law::kNormal:
      value = low + high * Ndtri(std::clamp(u, 0x1p-54, 1 - 0x1p-53));
      break;
    case Law::kInteger:
      value = std::min(low + std::floor(u * (high - low)), high - 1);
      break;
    case Law::kLogInteger:
      value = std::exp(std::log(low) + u * (std::log(high) - std::log(low)));
      value = std::clamp(std::floor(value), low, high - 1);
      break;
    case Law::kCategory:
    case Law::kGrid: {
      const double count = static_cast<double>(choices);
      return std::min(std::floor(u * count), count - 1);
    }
  }
  return step > 0 ? Stepped(value) : value;
}

// A multiple of the step may lie behind an end by the last bit of both.
double Parameter::Stepped(double value) const {
  return std::clamp(RoundTo(value, spacing()), first(), last());
}

double Parameter::ToUnit(double value) const {
  if (is_category()) return (value + 0.5) / static_cast<double>(choices);
  if (law == Law::kNormal) return Ndtr((value - low) / high);
  const double margin = is_stepped() ? spacing() / 2 : 0;
  double left = first() - margin;
  double right = last() + margin;
  if (is_log()) {
    left = std::log(left);
    right = std::log(right);
    value = std::log(value);
  }
  return std::clamp((value - left) / (right - left), 0.0, 1.0);
}

double Parameter::FromUnit(double u) const {
  if (is_category() || law == Law::kNormal) return Quantile(u);
  const double margin = is_stepped() ? spacing() / 2 : 0;
  double left = first() - margin;
  double right = last() + margin;
  if (is_log()) {
    left = std::log(left);
    right = std::log(right);
  }
  double value = left + u * (right - left);
  if (is_log()) value = std::exp(value);
  if (!is_stepped()) return std::clamp(value, low, high);
  return Stepped(value);
}

void Parameter::Check(double value) const {
  const bool whole = is_category() || is_integer();
  // Files of before have multiples that lie behind an end by a bit.
  const double slack = is_stepped() ? spacing() / 2 : 0;
  const bool fits = std::isfinite(value) && value >= first() - slack && value <= last() + slack &&
                    (!whole || value == std::floor(value)) &&
                    (step <= 0 || IsMultiple(value, step));
  if (fits) return;
  const std::string grid = step > 0 ? fmt::format(" in steps of {}", step) : "";
  Refuse(fmt::format("{}: {} is not a value of the parameter; give one of [{}, {}]{}", name, value,
                     first(), last(), grid));
}

Value Parameter::Decode(double value) const {
  if (is_category() && !values.empty()) return values[static_cast<std::size_t>(value)];
  if (is_category() || is_integer()) return static_cast<std::int64_t>(value);
  return value;
}

double Parameter::Encode(const Value& value) const {
  if (is_category() && !values.empty()) {
    const auto found = std::find(values.begin(), values.end(), value);
    if (found == values.end()) {
      Refuse(fmt::format("{}: the value is not one of its {} choices", name, choices));
    }
    return static_cast<double>(found - values.begin());
  }
  double number = kNaN;
  if (const auto* whole = std::get_if<std::int64_t>(&value)) number = static_cast<double>(*whole);
  if (const auto* real = std::get_if<double>(&value)) number = *real;
  Check(number);
  return number;
}

Parameter Uniform(std::string name, double low, double high) {
  return Continuous(std::move(name), Law::kUniform, low, high);
}

Parameter QUniform(std::string name, double low, double high, double step) {
  return WithStep(Uniform(std::move(name), low, high), step);
}

Parameter LogUniform(std::string name, double low, double high) {
  return Continuous(std::move(name), Law::kLogUniform, low, high);
}

Parameter QLogUniform(std::string name, double low, double high, double step) {
  return WithStep(LogUniform(std::move(name), low, high), step);
}

Parameter Normal(std::string name, double mean, double deviation) {
  if (!std::isfinite(mean) || !std::isfinite(deviation) || deviation <= 0) {
    Refuse(
        fmt::format("{}: standard deviation {} around {} is not positive", name, deviation, mean));
  }
  return Parameter{.name = std::move(name), .law = Law::kNormal, .low = mean, .high = deviation};
}

Parameter QNormal(std::string name, double mean, double deviation, double step) {
  Parameter p = Normal(std::move(name), mean, deviation);
  p.step = step;
  CheckStep(p, false);
  return p;
}

Parameter Integer(std::string name, std::int64_t low, std::int64_t high) {
  return Whole(std::move(name), Law::kInteger, low, high, 1);
}

Parameter QInteger(std::string name, std::int64_t low, std::int64_t high, std::int64_t step) {
  return Whole(std::move(name), Law::kInteger, low, high, step);
}

Parameter LogInteger(std::string name, std::int64_t low, std::int64_t high) {
  return Whole(std::move(name), Law::kLogInteger, low, high, 1);
}

Parameter QLogInteger(std::string name, std::int64_t low, std::int64_t high, std::int64_t step) {
  return Whole(std::move(name), Law::kLogInteger, low, high, step);
}

Parameter Choice(std::string name, std::int64_t choices) {
  return Categories(std::move(name), Law::kCategory, choices);
}

Parameter Choice(std::string name, std::vector<Value> values) {
  Parameter p = Choice(std::move(name), static_cast<std::int64_t>(values.size()));
  p.values = std::move(values);
  return p;
}

Parameter Grid(std::string name, std::int64_t choices) {
  return Categories(std::move(name), Law::kGrid, choices);
}

Parameter Grid(std::string name, std::vector<Value> values) {
  Parameter p = Grid(std::move(name), static_cast<std::int64_t>(values.size()));
  p.values = std::move(values);
  return p;
}

Parameter When(Parameter parameter, std::string parent, std::int64_t choice) {
  parameter.parent = std::move(parent);
  parameter.parent_choice = choice;
  return parameter;
}

std::vector<Parameter> Subset(const std::string& name, std::int64_t choices, std::int64_t min,
                              std::int64_t max) {
  if (min < 0 || min >= max || max - 1 > choices) {
    Refuse(fmt::format("{}: cannot take {} to {} (the upper limit is excluded) of {} things", name,
                       min, max - 1, choices));
  }
  std::vector<Parameter> parameters = {Integer(name + "/#size", min, max)};
  for (std::int64_t i = 0; i < choices; ++i) {
    parameters.push_back(Uniform(fmt::format("{}/#{}", name, i), 0, 1));
  }
  return parameters;
}

Space::Space(std::vector<Parameter> parameters) : parameters_(std::move(parameters)) {
  if (parameters_.empty()) Refuse("the search space is empty; give at least one parameter");
  std::set<std::string_view> names;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const Parameter& p = parameters_[i];
    if (!names.insert(p.name).second) Refuse(fmt::format("there are two parameters {}", p.name));
    purposes_.push_back(HashName(p.name));
    parents_.push_back(-1);
    if (!p.parent.empty()) {
      const auto parent =
          std::find_if(parameters_.begin(), parameters_.begin() + static_cast<std::ptrdiff_t>(i),
                       [&](const Parameter& other) { return other.name == p.parent; });
      const std::ptrdiff_t at = parent - parameters_.begin();
      if (at == static_cast<std::ptrdiff_t>(i) || !parent->is_category() || p.parent_choice < 0 ||
          p.parent_choice >= parent->choices) {
        Refuse(fmt::format("{} depends on choice {} of {}, which is no category before it", p.name,
                           p.parent_choice, p.parent));
      }
      parents_.back() = at;
    }
    if (p.law != Law::kGrid) continue;
    if (!p.parent.empty()) {
      Refuse(fmt::format("{}: a grid cannot depend on {}; grids are outside of choices", p.name,
                         p.parent));
    }
    grid_.push_back(i);
    if (grid_cells_ > std::numeric_limits<std::int64_t>::max() / p.choices) {
      Refuse("the grid has more than 2^63 cells; give fewer values");
    }
    grid_cells_ *= p.choices;
  }
  std::sort(grid_.begin(), grid_.end(), [this](std::size_t a, std::size_t b) {
    return parameters_[a].name < parameters_[b].name;
  });
  counts_.resize(size());
  for (std::size_t i = size(); i-- > 0;) {  // What is below a parameter comes behind it.
    if (!parameters_[i].is_category()) counts_[i] = parameters_[i].Cardinality();
    for (std::int64_t choice = 0; choice < parameters_[i].choices; ++choice) {
      counts_[i] += CountBelow(static_cast<std::int64_t>(i), choice);
    }
  }
}

std::size_t Space::Index(std::string_view name) const {
  std::string known;
  for (std::size_t i = 0; i < size(); ++i) {
    if (parameters_[i].name == name) return i;
    if (i < 20) known += (i == 0 ? "" : ", ") + parameters_[i].name;
  }
  Refuse(fmt::format("there is no parameter {}; known: {}{}", name, known,
                     size() > 20 ? ", ..." : ""));
}

bool Space::IsActive(const Point& point, std::size_t index) const {
  // A parent that does not exist is NaN, which equals no choice.
  return parents_[index] < 0 || point[static_cast<std::size_t>(parents_[index])] ==
                                    static_cast<double>(parameters_[index].parent_choice);
}

Point Space::Draw(std::uint64_t seed, std::int64_t trial) const { return Redraw(seed, trial, 0); }

void Space::Complete(Point& point, std::uint64_t seed, std::int64_t trial) const {
  const Point drawn = Draw(seed, trial);
  for (std::size_t i = 0; i < size(); ++i) {
    if (!IsActive(point, i)) {
      point[i] = kNaN;
    } else if (std::isnan(point[i])) {
      Stream stream(seed, trial, purposes_[i]);
      point[i] = std::isnan(drawn[i]) ? parameters_[i].Quantile(stream.Uniform()) : drawn[i];
    }
  }
}

Point Space::Redraw(std::uint64_t seed, std::int64_t trial, std::uint32_t attempt) const {
  Point point(size(), kNaN);
  std::int64_t cell = trial % grid_cells_;
  for (const std::size_t i : grid_) {
    point[i] = static_cast<double>(cell % parameters_[i].choices);
    cell /= parameters_[i].choices;
  }
  for (std::size_t i = 0; i < size(); ++i) {
    if (parameters_[i].law == Law::kGrid || !IsActive(point, i)) continue;
    Stream stream(seed, trial, purposes_[i]);
    stream.Seek(attempt);
    point[i] = parameters_[i].Quantile(stream.Uniform());
  }
  return point;
}

void Space::Check(const Point& point) const {
  if (point.size() != size()) {
    Refuse(fmt::format("a point of {} numbers for a space of {} parameters", point.size(), size()));
  }
  for (std::size_t i = 0; i < size(); ++i) {
    if (IsActive(point, i)) {
      parameters_[i].Check(point[i]);
    } else if (!std::isnan(point[i])) {
      Refuse(fmt::format("{} has a value, though {} is not {}", parameters_[i].name,
                         parameters_[i].parent, parameters_[i].parent_choice));
    }
  }
}

bool Space::IsBelow(std::size_t index, std::int64_t parent, std::int64_t choice) const {
  return parents_[index] == parent && (parent < 0 || parameters_[index].parent_choice == choice);
}

double Space::CountBelow(std::int64_t parent, std::int64_t choice) const {
  double product = 1;
  for (auto i = static_cast<std::size_t>(parent + 1); i < size(); ++i) {
    if (IsBelow(i, parent, choice)) product *= counts_[i];
  }
  return product;
}

Point Space::Enumerate(std::int64_t index) const {
  Point point(size(), kNaN);
  EnumerateBelow(-1, 0, index, point);
  return point;
}

void Space::EnumerateBelow(std::int64_t parent, std::int64_t choice, std::int64_t index,
                           Point& point) const {
  for (auto i = static_cast<std::size_t>(parent + 1); i < size(); ++i) {
    if (!IsBelow(i, parent, choice)) continue;
    const Parameter& p = parameters_[i];
    const auto count = static_cast<std::int64_t>(counts_[i]);
    std::int64_t digit = index % count;
    index /= count;
    if (!p.is_category()) {
      point[i] = p.Stepped(p.first() + static_cast<double>(digit) * p.spacing());
      continue;
    }
    const auto at = static_cast<std::int64_t>(i);
    std::int64_t taken = 0;
    if (count == p.choices) {  // One point for each: no need to look for it.
      taken = std::exchange(digit, 0);
    }
    for (std::int64_t below = 0;; ++taken, digit -= below) {
      below = static_cast<std::int64_t>(CountBelow(at, taken));
      if (digit < below) break;
    }
    point[i] = static_cast<double>(taken);
    EnumerateBelow(at, taken, digit, point);
  }
}

}  // namespace orca::tune
