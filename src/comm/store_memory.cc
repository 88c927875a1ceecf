#include "comm/store_map.h"
#include "orca/comm/store.h"

namespace orca::comm {
namespace {

class MemoryStore final : public Store {
 public:
  void Set(const std::string& key, const std::string& value) override {
    CheckStoreKey(key);
    CheckStoreValue(key, value);
    map_.Set(key, value);
  }

  std::string Get(const std::string& key, std::chrono::milliseconds timeout) override {
    CheckStoreKey(key);
    if (auto value = map_.WaitFor(key, StoreDeadline(timeout))) return *std::move(value);
    ThrowNotSet("the memory store", key, timeout);
  }

 private:
  StoreMap map_;
};

}  // namespace

std::shared_ptr<Store> NewMemoryStore() { return std::make_shared<MemoryStore>(); }

}  // namespace orca::comm
