// Messages of a rank to itself, which torch allows for isend and irecv.
#pragma once

#include <ATen/ATen.h>

#include <deque>
#include <exception>
#include <mutex>
#include <optional>

#include "work.h"

namespace orca::plugin {

/// Matches sends and receives by tag, in their order. Any thread may use it.
class SelfMailbox {
 public:
  explicit SelfMailbox(int rank) : rank_(rank) {}

  /// Takes a copy of the data, or hands it to a waiting receive.
  void Send(const at::Tensor& data, int tag);
  /// Ends a part of `work` (see OrcaWork::ExpectPart) when the message is in `data`.
  void Recv(const at::Tensor& data, int tag, const c10::intrusive_ptr<OrcaWork>& work);
  /// Ends what waits, with an error.
  void Close(const std::exception_ptr& error);

 private:
  struct Letter {
    int tag;
    at::Tensor data;
    c10::intrusive_ptr<OrcaWork> work;  // Of a receive.
  };
  /// Takes the first letter with `tag` out of `letters`; without one, puts `letter` into `others`.
  std::optional<Letter> TakeOrLeave(std::deque<Letter>& letters, std::deque<Letter>& others,
                                    Letter letter);
  void Deliver(const at::Tensor& from, const Letter& to) const;

  const int rank_;
  std::mutex mutex_;
  std::deque<Letter> sent_;  // Guarded by mutex_, as is the next.
  std::deque<Letter> waiting_;
};

}  // namespace orca::plugin
