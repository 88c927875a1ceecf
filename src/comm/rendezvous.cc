#include "comm/rendezvous.h"

#include <fmt/format.h>

#include "orca/core/error.h"

namespace orca::comm {
namespace {

constexpr std::chrono::milliseconds kGlance(1);   // is it there already?
constexpr std::chrono::seconds kBadNewsGrace(5);  // for rank 0 to tell the others who is missing
constexpr char kGood = '+';
constexpr char kBad = '!';

// Texts one behind the other, each after its length.
std::string Join(const std::vector<std::string>& texts) {
  std::string joined;
  for (const std::string& text : texts) joined += fmt::format("{}:{}", text.size(), text);
  return joined;
}

std::vector<std::string> Split(const std::string& joined, std::size_t offset) {
  std::vector<std::string> texts;
  while (offset < joined.size()) {
    const auto colon = joined.find(':', offset);
    std::size_t length = 0;
    try {
      length = std::stoul(joined.substr(offset, colon - offset));
    } catch (const std::exception&) {
      throw Error(Code::kPeerLost,
                  "the store holds a table that cannot be read; is another program using it?");
    }
    texts.push_back(joined.substr(colon + 1, length));
    offset = colon + 1 + length;
  }
  return texts;
}

}  // namespace

std::string Rendezvous::Key(const std::string& topic) const {
  return fmt::format("orca/{}/{}/{}", membership_.group, membership_.generation, topic);
}

std::vector<std::string> Rendezvous::Meet(const std::string& topic, const std::string& mine) {
  if (membership_.world == 1) return {mine};
  std::string table;
  if (membership_.rank == 0) {
    table = Collect(topic, mine);
    membership_.store->Set(Key(topic), table);
  } else {
    membership_.store->Set(Key(fmt::format("{}/{}", topic, membership_.rank)), mine);
    try {
      table = membership_.store->Get(Key(topic), deadline_.Left() + kBadNewsGrace);
    } catch (const Error& error) {
      throw Error(error.code(),
                  fmt::format("rank {} did not hear from rank 0 while the group formed: {}",
                              membership_.rank, error.what()));
    }
  }
  if (table.empty() || table[0] != kGood)
    throw Error(Code::kTimeout, table.empty() ? "empty table" : table.substr(1));
  auto texts = Split(table, 1);
  if (texts.size() != static_cast<std::size_t>(membership_.world)) {
    throw Error(Code::kMismatch, fmt::format("rank 0 has a group of {} ranks, rank {} one of {}",
                                             texts.size(), membership_.rank, membership_.world));
  }
  return texts;
}

std::string Rendezvous::Collect(const std::string& topic, const std::string& mine) {
  std::vector<std::string> texts{mine};
  std::string missing;
  for (int rank = 1; rank < membership_.world; ++rank) {
    const auto patience = missing.empty() ? std::max(deadline_.Left(), kGlance) : kGlance;
    try {
      texts.push_back(membership_.store->Get(Key(fmt::format("{}/{}", topic, rank)), patience));
    } catch (const Error& error) {
      if (error.code() != Code::kTimeout) throw;
      missing += fmt::format("{}{}", missing.empty() ? "" : ", ", rank);
    }
  }
  if (missing.empty()) return kGood + Join(texts);
  return fmt::format("{}the group of {} ranks did not form in time: rank {} did not come", kBad,
                     membership_.world, missing);
}

net::Secret Rendezvous::AgreeOnSecret() {
  if (membership_.secret) return *membership_.secret;
  if (membership_.world == 1) return net::Secret::Random();
  if (membership_.rank == 0) {
    const net::Secret secret = net::Secret::Random();
    membership_.store->Set(Key("key"), secret.ToHex());
    return secret;
  }
  return net::Secret::FromHex(membership_.store->Get(Key("key"), deadline_.Left()));
}

void CheckCards(const std::vector<Card>& cards) {
  for (std::size_t rank = 1; rank < cards.size(); ++rank) {
    const auto check = [&](const char* what, const std::string& first, const std::string& other) {
      if (first == other) return;
      throw Error(
          Code::kFailedPrecondition,
          fmt::format("rank 0 and rank {} have different {}: '{}' and '{}'; make them the same",
                      rank, what, first, other));
    };
    check("versions of orca", cards[0].version, cards[rank].version);
    check("options", cards[0].options, cards[rank].options);
  }
}

}  // namespace orca::comm
