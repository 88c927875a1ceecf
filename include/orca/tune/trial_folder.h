// What a trial's folder says to people, and to tools that read those of Ray Tune.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <variant>

#include "orca/core/export.h"
#include "orca/io/event_file.h"

namespace orca::tune {

/// Writes params.json, a line for each report in result.json and progress.csv, and TensorBoard's
/// events. Nothing goes on from these files; a trial that goes on in another process adds to them.
///
/// One thread at a time. What cannot be written throws the error of io::ThrowFileError.
class ORCA_API TrialFolder {
 public:
  using Hparams = decltype(io::HparamSession::hparams);

  struct Report {
    std::int64_t step = 0;
    double value = 0;
    double best = 0;     ///< Of the reports so far.
    double seconds = 0;  ///< Since the trial began.
  };

  /// `folder` may be missing, in one that is there. `metric` is the name of what is reported,
  /// `began` in seconds since 1970.
  TrialFolder(std::filesystem::path folder, std::string metric, double began);

  /// `config` is JSON, `hparams` the same as TensorBoard has it.
  void Begin(std::string_view config, Hparams hparams);
  void Add(const Report& report);
  /// Puts the trial into TensorBoard's table of hyper-parameters. Once; nothing before Begin.
  void End(bool has_failed);

 private:
  const std::filesystem::path folder_;
  const std::string metric_;
  const double began_;
  Hparams hparams_;
  std::unique_ptr<io::EventWriter> events_;  // None before Begin, and when the disk was full then.
};

}  // namespace orca::tune
