#include "tune.h"

#include <fmt/format.h>

#include <charconv>
#include <cstdint>
#include <cstdio>

#include "orca/core/error.h"
#include "orca/io/atomic_file.h"
#include "orca/tune/study_view.h"

namespace orca::cli {
namespace {

struct ShowOptions {
  std::string path;
  std::int64_t study = 0;
  std::string format;  // "": a table
  std::string page;
};

[[noreturn]] void Usage(const std::string& why) {
  throw Error(Code::kInvalidArgument,
              why + "; orca tune show PATH [--study ID] [--csv | --json | --html FILE]");
}

ShowOptions ReadOptions(std::span<const std::string> arguments) {
  ShowOptions options;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string& word = arguments[i];
    const bool has_value = i + 1 < arguments.size();
    if (word == "--csv" || word == "--json" || word == "--html") {
      if (!options.format.empty()) Usage("give one of --csv, --json and --html");
      options.format = word;
      if (word != "--html") continue;
      if (!has_value) Usage("--html needs the file to write");
      options.page = arguments[++i];
    } else if (word == "--study") {
      const std::string number = has_value ? arguments[++i] : "";
      const auto read =
          std::from_chars(number.data(), number.data() + number.size(), options.study);
      if (number.empty() || read.ec != std::errc() || read.ptr != number.data() + number.size() ||
          options.study < 1)
        Usage(fmt::format("--study \"{}\" is no number of a study", number));
    } else if (word.starts_with("--") || !options.path.empty()) {
      Usage(fmt::format("\"{}\" is not understood", word));
    } else {
      options.path = word;
    }
  }
  if (options.path.empty()) Usage("no file or folder is given");
  return options;
}

// Whole or not at all: a page that is looked at is not cut.
void WritePage(const std::string& page, const std::string& file) {
  io::AtomicFile written(file, io::Access::kUmask);
  written.Write(page);
  written.Commit();
}

int Show(std::span<const std::string> arguments) {
  const ShowOptions options = ReadOptions(arguments);
  const auto store = tune::StudyStore::OpenToRead(tune::FindStudyFile(options.path));
  const auto view = tune::ViewStudy(store, options.study);
  if (options.format == "--html") {
    WritePage(tune::StudyPage(view), options.page);
    return 0;
  }
  std::string text;
  if (options.format == "--csv") {
    text = tune::StudyCsv(view);
  } else if (options.format == "--json") {
    text = tune::StudyJson(view);
  } else {
    text = tune::StudyTable(view);
    const auto studies = store.Studies();
    if (studies.size() > 1) {
      text += "\nstudies in this file (--study ID):";
      for (const auto& study : studies)
        text += fmt::format(" {} ({})", study.id, tune::OneLine(study.name, 100));
      text += "\n";
    }
  }
  std::fputs(text.c_str(), stdout);
  return 0;
}

int Salvage(std::span<const std::string> arguments) {
  if (arguments.size() != 1) throw Error(Code::kInvalidArgument, "orca tune salvage FILE");
  const auto salvaged = tune::SalvageStudies(arguments[0]);
  std::puts(fmt::format("{} studies, {} trials and {} reports were read; the damaged file is {}",
                        salvaged.studies, salvaged.trials, salvaged.reports, salvaged.kept.string())
                .c_str());
  return 0;
}

}  // namespace

int Tune(std::span<const std::string> arguments) {
  if (!arguments.empty() && arguments[0] == "salvage") return Salvage(arguments.subspan(1));
  if (arguments.empty() || arguments[0] != "show")
    Usage(arguments.empty() ? "a command is missing"
                            : fmt::format("there is no command \"tune {}\"", arguments[0]));
  return Show(arguments.subspan(1));
}

}  // namespace orca::cli
