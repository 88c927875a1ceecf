#include <elf.h>
#include <fmt/format.h>
#include <link.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <span>
#include <vector>

#include "orca/core/error.h"
#include "runtime/symbol.h"

namespace orca::runtime {
namespace {

/// One loaded file: the program itself or a library.
struct Module {
  std::string file;
  std::string build;
  std::uintptr_t base = 0;
  std::uintptr_t end = 0;
};

std::string BuildIdIn(std::span<const char> notes) {
  while (notes.size() >= sizeof(ElfW(Nhdr))) {
    ElfW(Nhdr) note{};
    std::memcpy(&note, notes.data(), sizeof note);
    const std::size_t name = (note.n_namesz + 3U) / 4 * 4;
    const std::size_t text = (note.n_descsz + 3U) / 4 * 4;
    if (notes.size() < sizeof note + name + text) break;
    if (note.n_type == NT_GNU_BUILD_ID) {
      std::string hex;
      for (const char byte : notes.subspan(sizeof note + name, note.n_descsz))
        hex += fmt::format("{:02x}", static_cast<unsigned char>(byte));
      return hex;
    }
    notes = notes.subspan(sizeof note + name + text);
  }
  return "";
}

int AddModule(dl_phdr_info* info, std::size_t /*size*/, void* modules) {
  Module module{.file = info->dlpi_name, .base = info->dlpi_addr};
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const ElfW(Phdr)& part = info->dlpi_phdr[i];
    if (part.p_type == PT_LOAD)
      module.end = std::max(module.end, info->dlpi_addr + part.p_vaddr + part.p_memsz);
    if (part.p_type == PT_NOTE && module.build.empty())
      module.build =
          BuildIdIn({reinterpret_cast<const char*>(info->dlpi_addr + part.p_vaddr), part.p_memsz});
  }
  if (module.file.empty()) module.file = "the program";
  static_cast<std::vector<Module>*>(modules)->push_back(std::move(module));
  return 0;
}

std::vector<Module> LoadedModules() {
  std::vector<Module> modules;
  ::dl_iterate_phdr(AddModule, &modules);
  return modules;
}

}  // namespace

Symbol SymbolOf(void (*function)()) {
  const auto address = reinterpret_cast<std::uintptr_t>(function);
  for (const Module& module : LoadedModules()) {
    if (address < module.base || address >= module.end) continue;
    if (module.build.empty()) {
      throw Error(
          Code::kInvalidArgument,
          fmt::format("{} has no build id, so that workers cannot tell whether they run the "
                      "same build; link it with -Wl,--build-id",
                      module.file));
    }
    return {.module = module.file, .build = module.build, .offset = address - module.base};
  }
  throw Error(Code::kInvalidArgument,
              "the function lies in no loaded file; give a plain function, not a generated one");
}

void (*Resolve(const Symbol& symbol))() {
  for (const Module& module : LoadedModules()) {
    if (module.build == symbol.build && symbol.offset < module.end - module.base)
      return reinterpret_cast<void (*)()>(module.base + symbol.offset);
  }
  throw Error(Code::kFailedPrecondition,
              fmt::format("this worker does not have {} with build id {}; start the same build "
                          "everywhere, and link the library that has the function",
                          symbol.module, symbol.build));
}

}  // namespace orca::runtime
