#include "orca/runtime/context.h"

#include <fmt/format.h>

#include "orca/core/error.h"
#include "runtime/controller.h"

namespace orca::runtime {

using std::chrono::milliseconds;

OnFailure ParseOnFailure(const std::string& text) {
  if (text == "raise") return OnFailure::kRaise;
  if (text == "restart") return OnFailure::kRestart;
  if (text == "shrink") return OnFailure::kShrink;
  throw Error(Code::kInvalidArgument,
              fmt::format("on_failure=\"{}\" is not known; give \"raise\", \"restart\" or "
                          "\"shrink\"",
                          text));
}

Context::Context(std::unique_ptr<Controller> controller) : controller_(std::move(controller)) {}
Context::~Context() = default;

std::unique_ptr<Context> Context::Start(const ContextOptions& options) {
  return std::unique_ptr<Context>(new Context(std::make_unique<Controller>(options)));
}
int Context::cores() const { return controller_->cores(); }
std::size_t Context::memory() const { return controller_->memory(); }
bool Context::is_local() const { return controller_->is_local(); }
std::string Context::plan() const { return controller_->plan(); }
void Context::Prepare(const NurserySpec& spec) { controller_->Prepare(spec); }
std::shared_ptr<Run> Context::Submit(RunSpec spec) { return controller_->Submit(std::move(spec)); }
std::optional<Event> Context::NextEvent(milliseconds timeout) {
  return controller_->NextEvent(timeout);
}
const std::shared_ptr<data::ShardHome>& Context::shards() const { return controller_->shards(); }
Door Context::OpenDoor() { return controller_->OpenDoor(); }
std::uint64_t Context::NewBasket() { return controller_->NewBasket(); }
std::vector<std::shared_ptr<const data::ShardHold>> Context::EmptyBasket(
    std::uint64_t basket, const std::vector<std::uint64_t>& shards) {
  return controller_->EmptyBasket(basket, shards);
}
std::optional<Question> Context::NextQuestion(milliseconds timeout) {
  return controller_->NextQuestion(timeout);
}
void Context::Answer(const Question& question, const Reply& reply) {
  controller_->Answer(question, reply);
}
void Context::PrintStacks() { controller_->PrintStacks(); }
void Context::Stop() { controller_->Stop(); }
bool Context::stopped() const { return controller_->stopped(); }

}  // namespace orca::runtime
