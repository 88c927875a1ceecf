// Scalars and hyper-parameters in TensorBoard's event files.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "orca/core/export.h"
#include "orca/io/file_system.h"

namespace orca::io {

struct Scalar {
  std::int64_t step = 0;
  double value = 0;
  double wall_time = 0;  ///< Seconds since 1970.
};

/// A row of TensorBoard's table of hyper-parameters; the folder's scalars are its metrics.
struct HparamSession {
  std::map<std::string, std::variant<bool, double, std::string>> hparams;
  bool has_failed = false;
  double began = 0;  ///< Seconds since 1970; 0 is now.
};

/// Writes a new event file, which TensorBoard shows while it grows.
///
/// Any thread may use it. A full disk costs events, not the run: the first failure is logged, the
/// rest of a record that was cut off is written first when there is room again.
class ORCA_API EventWriter {
 public:
  /// Makes `folder` where it is missing, and in it events.out.tfevents.<time>.<host>.<word>.
  explicit EventWriter(const Path& folder, FileSystem& files = RealFiles());

  /// `wall_time` in seconds since 1970; 0 is now.
  void AddScalar(const std::string& tag, double value, std::int64_t step, double wall_time = 0);
  /// Values of one step, by their tags, in one write.
  void AddScalars(const std::vector<std::pair<std::string, double>>& values, std::int64_t step);
  /// All values of metrics, by their tags, the first at step 0, in one write. Those that are no
  /// numbers are left out.
  void AddCurves(const std::map<std::string, std::vector<double>>& curves);
  void AddHparams(const HparamSession& session);
  /// Returns when all events are on the disk. Throws when they are not.
  void Sync();

  const Path& path() const { return path_; }

 private:
  void Append(const std::vector<std::byte>& records);
  int WriteUnwritten();

  Path path_;
  std::mutex mutex_;
  // Guarded by mutex_.
  std::unique_ptr<WritableFile> file_;
  std::vector<std::byte> unwritten_;
  bool is_reported_ = false;
};

/// The values of `tag` in all event files of `folder`, in the order of the files and of the events
/// in them: ours, torch's and TensorFlow's (as plain values and as tensors of one element). A file
/// that is damaged is read up to there, with a warning; a record that is not complete yet is no
/// damage. Throws kUnavailable when a file cannot be read.
ORCA_API std::vector<Scalar> ReadScalars(const Path& folder, const std::string& tag,
                                         FileSystem& files = RealFiles());

}  // namespace orca::io
