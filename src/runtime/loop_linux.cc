#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "orca/core/error.h"
#include "orca/core/host.h"
#include "runtime/loop.h"

namespace orca::runtime {
namespace {

// Nothing waits for longer, so that a lost wake-up (a bug) costs a second and no more.
constexpr std::chrono::milliseconds kLongestNap(1000);
constexpr std::chrono::milliseconds kNapOfOthers(100);
constexpr std::chrono::milliseconds kMoment(20);
constexpr std::chrono::milliseconds kPatience(5);

}  // namespace

Loop::Loop() : wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!wake_) throw Error(Code::kResourceExhausted, DescribeLimitError(errno));
}

void Loop::Watch(int fd, std::function<short()> wants, std::function<void(short)> ready) {
  watched_[fd] = {.wants = std::move(wants), .ready = std::move(ready), .id = next_id_++};
}

void Loop::Watch(int fd, std::function<void()> readable) {
  Watch(
      fd, [] { return static_cast<short>(POLLIN); },
      [readable = std::move(readable)](short) { readable(); });
}

void Loop::Forget(int fd) { watched_.erase(fd); }

void Loop::Include(std::function<void(std::vector<pollfd>&)> append, std::function<void()> handle) {
  append_ = std::move(append);
  handle_ = std::move(handle);
}

void Loop::At(Clock::time_point when, std::function<void()> call) {
  timers_.emplace(when, std::move(call));
}

void Loop::Post(std::function<void()> call) {
  {
    const std::lock_guard lock(mutex_);
    posted_.push_back(std::move(call));
  }
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = ::write(wake_.get(), &one, sizeof one);
}

void Loop::Stop() {
  Post([this] {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
  });
}

bool Loop::stopped() const {
  const std::lock_guard lock(mutex_);
  return stopped_;
}

void Loop::Run() {
  while (!stopped()) Turn(kLongestNap);
}

void Loop::RunUntil(const std::function<bool()>& done, const Deadline& deadline) {
  while (!stopped() && !done() && !deadline.Passed())
    Turn(std::min(kLongestNap, deadline.Left() + std::chrono::milliseconds(1)));
}

void Loop::Turn(std::chrono::milliseconds longest) {
  std::vector<pollfd> fds{{.fd = wake_.get(), .events = POLLIN, .revents = 0}};
  std::vector<std::uint64_t> ids{0};
  for (const auto& [fd, watched] : watched_) {
    const short events = watched.wants();
    if (events == 0) continue;
    fds.push_back({.fd = fd, .events = events, .revents = 0});
    ids.push_back(watched.id);
  }
  const std::size_t watched_fds = fds.size();
  if (append_) append_(fds);
  auto nap = append_ ? std::min(kNapOfOthers, longest) : longest;
  if (!timers_.empty()) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(timers_.begin()->first - Clock::now());
    nap = std::clamp(left, std::chrono::milliseconds(0), nap);
  }
  ::poll(fds.data(), fds.size(), static_cast<int>(nap.count()));
  if (fds[0].revents != 0) {
    std::uint64_t count = 0;
    [[maybe_unused]] const auto got = ::read(wake_.get(), &count, sizeof count);
  }
  RunPosted();
  for (std::size_t i = 1; i < watched_fds; ++i) {
    if (fds[i].revents == 0) continue;
    const auto found = watched_.find(fds[i].fd);
    // A call before this one may have closed it, and another may have its number now.
    if (found == watched_.end() || found->second.id != ids[i]) continue;
    const auto ready = found->second.ready;
    ready(fds[i].revents);
  }
  if (handle_) handle_();
  RunTimers();
}

void Loop::RunPosted() {
  std::vector<std::function<void()>> posted;
  {
    const std::lock_guard lock(mutex_);
    posted.swap(posted_);
  }
  for (const auto& call : posted) call();
}

void Loop::RunTimers() {
  const auto now = Clock::now();
  while (!timers_.empty() && timers_.begin()->first <= now) {
    const auto call = std::move(timers_.begin()->second);
    timers_.erase(timers_.begin());
    call();
  }
}

LoopThread::LoopThread(Loop& loop, std::string name,
                       std::function<void(const std::exception&)> failed)
    : loop_(loop),
      name_(std::move(name)),
      failed_(std::move(failed)),
      forks_(ForkCount()),
      thread_(StartThread([this](const std::stop_token&) { Live(); })) {}

LoopThread::~LoopThread() { Join(); }

void LoopThread::Join() {
  if (ForkCount() != forks_) {  // the thread is the parent's
    if (thread_.joinable()) thread_.detach();
    return;
  }
  std::unique_lock lock(mutex_);
  // As the join below: the loop was stopped, and who borrowed it sees that in its next turn.
  returned_.wait(lock, [this] { return !lent_; });
  ended_ = true;
  PassOn();
  lock.unlock();
  if (thread_.joinable()) thread_.join();
}

void LoopThread::Turn(const std::function<bool()>& done, const Deadline& deadline) {
  try {
    loop_.RunUntil(done, deadline);
  } catch (const std::exception& error) {
    failed_(error);
    const std::lock_guard lock(mutex_);
    ended_ = true;
  }
}

void LoopThread::Live() {
  ::pthread_setname_np(::pthread_self(), name_.c_str());
  const auto is_wanted = [this] {
    const std::lock_guard lock(mutex_);
    return lent_ || ended_;
  };
  for (;;) {
    {
      const std::lock_guard running(running_);
      thread_runs_ = true;
      Turn(is_wanted, Deadline::After(std::chrono::hours(24)));
      thread_runs_ = false;
    }
    std::unique_lock lock(mutex_);
    if (ended_ || loop_.stopped()) return;
    // Who borrows it for a moment will soon do so again, and is not slowed down by two threads that
    // wake each other; while somebody keeps it longer this one sleeps until it is told.
    do {
      sleeps_ = lent_ && Loop::Clock::now() - lent_at_ >= kMoment;
      returned_.wait_for(lock, sleeps_ ? kLongestNap : kPatience);
    } while (lent_ && !ended_);
    sleeps_ = false;
  }
}

bool LoopThread::RunUntil(const std::function<bool()>& done, const Deadline& deadline,
                          std::condition_variable& turn) {
  if (ForkCount() != forks_) return false;
  {
    std::unique_lock lock(mutex_);
    const auto place = waiting_.insert(waiting_.end(), &turn);
    bool is_over = false;
    while (lent_ && !ended_ && !is_over)
      is_over = done() || turn.wait_until(lock, deadline.at()) == std::cv_status::timeout;
    waiting_.erase(place);
    if (ended_ || is_over) {
      PassOn();  // It may have been this one's turn.
      return !ended_;
    }
    lent_ = true;
    lent_at_ = Loop::Clock::now();
  }
  if (thread_runs_) loop_.Post([] {});
  {
    const std::lock_guard running(running_);
    Turn(done, deadline);
  }
  const std::lock_guard lock(mutex_);
  lent_ = false;
  PassOn();
  return true;
}

// To who waits for it, or back to the thread; the caller holds mutex_.
void LoopThread::PassOn() {
  if (lent_) return;
  if (!waiting_.empty()) waiting_.front()->notify_all();
  if ((waiting_.empty() && sleeps_) || ended_ || loop_.stopped()) returned_.notify_all();
}

void LoopThread::Wake(std::condition_variable& turn) {
  const std::lock_guard lock(mutex_);
  turn.notify_all();
}

void LoopThread::Serve() {
  const std::lock_guard lock(mutex_);
  if (!lent_ && !thread_runs_) returned_.notify_all();
}

}  // namespace orca::runtime
