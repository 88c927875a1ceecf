#include "self_mailbox.h"

#include <ATen/core/LegacyTypeDispatch.h>

#include <algorithm>
#include <optional>
#include <utility>

namespace orca::plugin {

std::optional<SelfMailbox::Letter> SelfMailbox::TakeOrLeave(std::deque<Letter>& letters,
                                                            std::deque<Letter>& others,
                                                            Letter letter) {
  const std::lock_guard lock(mutex_);
  const auto found = std::find_if(letters.begin(), letters.end(),
                                  [&](const Letter& other) { return other.tag == letter.tag; });
  if (found == letters.end()) {
    others.push_back(std::move(letter));
    return std::nullopt;
  }
  Letter match = std::move(*found);
  letters.erase(found);
  return match;
}

void SelfMailbox::Deliver(const at::Tensor& from, const Letter& to) const {
  std::exception_ptr error;
  try {
    const at::AutoDispatchBelowADInplaceOrView guard;
    TORCH_CHECK_VALUE(
        from.scalar_type() == to.data.scalar_type() && from.numel() == to.data.numel(),
        "orca:recv: the message that this rank sent to itself has ", from.numel(), " elements of ",
        from.scalar_type(), ", the receive wants ", to.data.numel(), " of ", to.data.scalar_type());
    to.data.copy_(from.view(to.data.sizes()));
  } catch (...) {
    error = std::current_exception();
  }
  to.work->PartEnded(error, rank_);
}

void SelfMailbox::Send(const at::Tensor& data, int tag) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  const at::Tensor copy = data.clone(at::MemoryFormat::Contiguous);
  if (const auto receive = TakeOrLeave(waiting_, sent_, {tag, copy, {}})) Deliver(copy, *receive);
}

void SelfMailbox::Recv(const at::Tensor& data, int tag, const c10::intrusive_ptr<OrcaWork>& work) {
  const Letter receive{tag, data, work};
  if (const auto sent = TakeOrLeave(sent_, waiting_, receive)) Deliver(sent->data, receive);
}

void SelfMailbox::Close(const std::exception_ptr& error) {
  std::deque<Letter> waiting;
  {
    const std::lock_guard lock(mutex_);
    waiting.swap(waiting_);
    sent_.clear();
  }
  for (const Letter& letter : waiting) letter.work->PartEnded(error, -1);
}

}  // namespace orca::plugin
