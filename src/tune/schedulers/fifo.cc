#include "tune/schedulers/make.h"

namespace orca::tune {
namespace {

class Fifo final : public SchedulerBase {
 public:
  explicit Fifo(const SchedulerOptions& options) : SchedulerBase("fifo", options.maximize) {}

  bool may_pause() const override { return false; }
  bool decides() const override { return false; }

 private:
  Decision OnReport(std::int64_t /*trial*/, std::int64_t /*step*/, double /*score*/) override {
    return Decision::kContinue;
  }
};

}  // namespace

MadeScheduler MakeFifo(Parameters& /*parameters*/, const SchedulerOptions& options) {
  return std::make_unique<Fifo>(options);
}

}  // namespace orca::tune
