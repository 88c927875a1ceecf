#include "backend.h"

#include <ATen/record_function.h>
#include <Python.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <set>
#include <thread>

#include "memory.h"

namespace orca::plugin {
namespace {

/// Every group of this process, for the end of the interpreter.
struct Registry {
  std::mutex mutex;
  std::set<OrcaBackend*> backends;  // Guarded by mutex.
};
Registry& Groups() { return PerProcess<Registry>(); }

/// Lets other Python threads run where this thread may have to wait for them.
class GilReleased {
 public:
  GilReleased()
      : state_(Py_IsInitialized() && PyGILState_Check() ? PyEval_SaveThread() : nullptr) {}
  ~GilReleased() {
    if (state_ != nullptr) PyEval_RestoreThread(state_);
  }
  GilReleased(const GilReleased&) = delete;
  GilReleased& operator=(const GilReleased&) = delete;

 private:
  PyThreadState* state_;
};

// --- torch's store as the engine's

int Report(OrcaError* error, Code code, const std::string& message) {
  error->code = static_cast<int>(code);
  std::snprintf(error->message, sizeof(error->message), "%s", message.c_str());
  return error->code;
}

template <typename Function>
int Guarded(OrcaError* error, Function function) {
  try {
    return function();
  } catch (const c10::Error& e) {
    return Report(error, Code::kUnavailable, e.what_without_backtrace());
  } catch (const std::exception& e) {
    return Report(error, Code::kUnavailable, e.what());
  }
}

int StoreSet(void* context, const char* key, const void* data, std::size_t size, OrcaError* error) {
  return Guarded(error, [&] {
    const auto* bytes = static_cast<const std::uint8_t*>(data);
    static_cast<c10d::Store*>(context)->set(key, std::vector<std::uint8_t>(bytes, bytes + size));
    return 0;
  });
}

int StoreGet(void* context, const char* key, std::int64_t timeout_ms,
             void (*receive)(void*, const void*, std::size_t), void* receiver, OrcaError* error) {
  const auto begin = std::chrono::steady_clock::now();
  // To a c10d store 0 means "for ever".
  const Milliseconds timeout(std::max<std::int64_t>(timeout_ms, 1));
  const int code = Guarded(error, [&] {
    auto* store = static_cast<c10d::Store*>(context);
    store->wait({key}, timeout);
    const std::vector<std::uint8_t> value = store->get(key);
    receive(receiver, value.data(), value.size());
    return 0;
  });
  const bool late = std::chrono::steady_clock::now() - begin >= timeout;
  if (code != 0 && late) error->code = static_cast<int>(Code::kTimeout);
  return code == 0 ? 0 : error->code;
}

OrcaComm* Connect(const OrcaApi& api, c10d::Store& store, int rank, int size,
                  const OrcaOptions& options) {
  const std::string name = "torch:" + options.group_name;
  // A group may form again on a store that still holds the old addresses (destroy and init under
  // torchrun). Every rank counts its own attempts, so the ranks agree on the number without
  // talking.
  const std::string counter = "orca/" + options.group_name + "/" + std::to_string(rank);
  const auto generation = static_cast<std::uint64_t>(size > 1 ? store.add(counter, 1) : 1);
  // Where nobody says otherwise, ranks may take as long to join as a collective may take.
  std::string settings = options.settings;
  if (settings.find("connect_timeout=") == std::string::npos &&
      std::getenv("ORCA_CONNECT_TIMEOUT") == nullptr) {
    const double seconds = std::chrono::duration<double>(options.timeout).count();
    settings = "connect_timeout=" + std::to_string(seconds) + "\n" + settings;
  }
  const OrcaGroup group{name.c_str(),
                        generation,
                        rank,
                        size,
                        options.timeout.count(),
                        {&store, &StoreSet, &StoreGet},
                        settings.c_str()};
  OrcaComm* comm = nullptr;
  OrcaError error;
  if (api.connect(&group, &comm, &error) != 0) ThrowError(error, "orca:connect");
  return comm;
}

}  // namespace

OrcaBackend::OrcaBackend(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                         c10::intrusive_ptr<OrcaOptions> options)
    : Backend(rank, size),
      api_(Engine()),
      epoch_(ForkEpoch()),
      options_(std::move(options)),
      group_(std::make_shared<GroupState>()),
      timeout_ms_(options_->timeout.count()),
      self_mailbox_(rank) {
  init();
  comm_ = Connect(api_, *store, rank, size, *options_);
  const std::lock_guard lock(Groups().mutex);
  Groups().backends.insert(this);
}

OrcaBackend::~OrcaBackend() {
  if (epoch_ != ForkEpoch()) return;
  // Who holds the registry may wait for a thread that waits for the GIL.
  const GilReleased released;
  {
    const std::lock_guard lock(Groups().mutex);
    Groups().backends.erase(this);
  }
  shutdown();
}

void OrcaBackend::CloseAll() {
  const GilReleased released;
  MarkProcessEnding();
  {
    const std::lock_guard lock(Groups().mutex);
    for (OrcaBackend* backend : Groups().backends) backend->shutdown();
  }
  WaitForFutures();
}

std::string OrcaBackend::Describe() {
  const Use use(*this, "orca:describe");
  return api_.describe(use.comm());
}

OrcaBackend::Use::Use(OrcaBackend& backend, const char* call) : backend_(backend) {
  backend.users_.fetch_add(1);
  comm_ = backend.comm_.load();
  if (C10_LIKELY(comm_ != nullptr && backend.epoch_ == ForkEpoch())) return;
  backend.users_.fetch_sub(1);
  if (backend.epoch_ != ForkEpoch()) {
    C10_THROW_ERROR(DistBackendError,
                    c10::str(call, ": this process (", getpid(),
                             ") is a forked child of the one that made the process group, and "
                             "cannot use it; start it with the \"spawn\" method, or make a group "
                             "of its own here"));
  }
  C10_THROW_ERROR(DistBackendError, c10::str(call,
                                             ": the process group has been shut down; call "
                                             "init_process_group() or new_group() again"));
}

// --- life of a group

at::Tensor OrcaBackend::allocateTensor(long size, at::TensorOptions options) {
  return EmptyRegistered({size}, c10::typeMetaToScalarType(options.dtype()));
}

std::shared_ptr<c10::Allocator> OrcaBackend::getMemAllocator() { return RegisteredAllocator(); }

c10::intrusive_ptr<c10d::Backend::Options> OrcaBackend::getBackendOptions() {
  auto copy = c10::make_intrusive<OrcaOptions>(*options_);
  copy->timeout = Milliseconds(timeout_ms_);
  return copy;
}

c10::intrusive_ptr<c10d::Backend> OrcaBackend::split(const c10::intrusive_ptr<c10d::Store>& store,
                                                     const std::vector<int>& ranks,
                                                     const c10::intrusive_ptr<Options>& opts) {
  const auto self = std::find(ranks.begin(), ranks.end(), rank_);
  if (self == ranks.end()) return nullptr;
  auto options = c10::dynamic_intrusive_pointer_cast<OrcaOptions>(opts);
  if (!options) {  // Another backend's options: what all backends have in common.
    options = c10::make_intrusive<OrcaOptions>(*options_);
    if (opts) {
      options->timeout = opts->timeout;
      options->group_name = opts->group_name;
    }
  }
  return c10::make_intrusive<OrcaBackend>(store, static_cast<int>(self - ranks.begin()),
                                          static_cast<int>(ranks.size()), std::move(options));
}

void OrcaBackend::abort() {
  if (epoch_ != ForkEpoch() || comm_.load() == nullptr) return;
  const GilReleased released;
  const Use use(*this, "orca:abort");
  api_.abort(use.comm(), ("rank " + std::to_string(rank_) + " aborted the process group").c_str());
}

void OrcaBackend::Drain() const {
  // Where a peer is gone, the engine ends the calls sooner.
  constexpr std::chrono::seconds kPatience(5);
  const auto limit = std::chrono::steady_clock::now() + kPatience;
  while (group_->pending.load() > 0 && std::chrono::steady_clock::now() < limit) {
    std::this_thread::sleep_for(Milliseconds(1));
  }
}

void OrcaBackend::shutdown() {
  if (epoch_ != ForkEpoch()) return;
  const GilReleased released;
  if (comm_.load() != nullptr && !InEngineCallback()) Drain();
  OrcaComm* comm = comm_.exchange(nullptr);
  if (comm == nullptr) return;
  self_mailbox_.Close(std::make_exception_ptr(
      c10::DistBackendError({__func__, __FILE__, static_cast<std::uint32_t>(__LINE__)},
                            "orca:recv: the process group was shut down before the message came")));
  if (users_.load() > 0) {
    // Another thread is in a call; it must be out before the group goes.
    api_.abort(comm, ("rank " + std::to_string(rank_) + " shut the process group down").c_str());
    while (users_.load() > 0) std::this_thread::sleep_for(Milliseconds(1));
  }
  if (InEngineCallback()) {
    // The last reference went in a callback; the engine's thread cannot wait for its own end.
    std::thread([api = &api_, comm] { api->close(comm); }).detach();
    return;
  }
  api_.close(comm);
}

// --- from tasks to the engine

void OrcaBackend::RunStep(OrcaComm* comm, const OrcaCall* call, const char* name) {
  OrcaError error;
  if (C10_LIKELY(api_.run(comm, call, &error) == 0)) return;
  NoteError(*group_, error);
  ThrowError(error, name);
}

void OrcaBackend::Run(Task& task) {
  RECORD_USER_SCOPE(task.name);
  try {
    const Use use(*this, task.name);
    for (Step& step : task.steps) RunStep(use.comm(), step.Ready(), task.name);
  } catch (...) {
    StayIfProcessEnds();
    throw;
  }
  task.rest.Copy();
}

c10::intrusive_ptr<OrcaWork> OrcaBackend::Launch(Task&& task) {
  const std::uint64_t sequence = sequence_.fetch_add(1, std::memory_order_relaxed) + 1;
  if (!task.async) {
    Run(task);
    auto ended =
        c10::make_intrusive<OrcaWork>(task.type, task.name, sequence, std::move(task.outputs));
    if (C10_UNLIKELY(!task.nested.empty())) ended->Nest(std::move(task.nested));
    return ended;
  }
  const bool profiled = at::getStepCallbacksUnlessEmpty(at::RecordScope::USER_SCOPE).has_value();
  auto work =
      c10::make_intrusive<OrcaWork>(task.type, task.name, sequence, std::move(task.outputs),
                                    std::move(task.rest), group_, profiled ? task.name : nullptr);
  work->Nest(std::move(task.nested));
  try {
    const Use use(*this, task.name);
    work->CountAsPending();
    Start(use.comm(), task, *work);
  } catch (...) {
    StayIfProcessEnds();
    throw;
  }
  work->Release();
  if (work->exception()) StayIfProcessEnds();  // A short call that ran here was cut short.
  Collect(work);
  return work;
}

void OrcaBackend::Start(OrcaComm* comm, Task& task, OrcaWork& work) {
  for (Step& step : task.steps) {
    void* context = work.ExpectDone();
    OrcaError error;
    if (api_.start(comm, step.Ready(), &OrcaWork::OnDone, context, &error) == 0) continue;
    work.Forget(context);
    NoteError(*group_, error);
    if (&step == task.steps.begin()) ThrowError(error, task.name);
    work.Fail(MakeError(error, task.name));
    return;
  }
}

void OrcaBackend::startCoalescing() {
  const std::lock_guard lock(batch_mutex_);
  batch_.clear();
  coalescing_ = true;
}

void OrcaBackend::Collect(const c10::intrusive_ptr<OrcaWork>& work) {
  if (!coalescing_.load(std::memory_order_relaxed)) return;
  const std::lock_guard lock(batch_mutex_);
  batch_.push_back(work);
}

WorkPtr OrcaBackend::endCoalescing() {
  std::vector<c10::intrusive_ptr<OrcaWork>> batch;
  {
    const std::lock_guard lock(batch_mutex_);
    coalescing_ = false;
    batch.swap(batch_);
  }
  Tensors outputs;
  for (const auto& work : batch) {
    outputs.insert(outputs.end(), work->outputs().begin(), work->outputs().end());
  }
  auto whole = c10::make_intrusive<OrcaWork>(OpType::COALESCED, "orca:coalesced", sequence_.load(),
                                             std::move(outputs), Rest{}, group_, nullptr);
  for (const auto& work : batch) {
    whole->ExpectPart();
    work->Join(whole);
  }
  whole->Release();
  return whole;
}

}  // namespace orca::plugin
