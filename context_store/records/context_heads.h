// The heads of all contexts in memory, by context and by app, so that look-ups and lists need no
// disk access. Neighbours: context_records.h keeps them as they are on the disk, record_codec.h has
// the record.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_map>

#include "absl/status/status.h"
#include "context_store/records/record_codec.h"

namespace withy::context_store {

struct ContextHead {
  std::string app_id;
  ContextRecord record;
  absl::Status damage;  // not OK: the head is unreadable
};

// Not thread-safe: guarded by the lock of the ContextRecords that own it. Always: an app's figures
// and indices are those of its contexts' records.
class ContextHeads {
 public:
  // Newest first: negated number and time of creation, then id. Contexts of former builds have the
  // number 0, and are older than all others.
  using Order = std::tuple<int64_t, int64_t, std::string>;
  using ByRequest = std::map<std::string, std::string, std::less<>>;  // request id -> context id
  struct App {
    std::set<Order> contexts;
    ByRequest created;
    ByRequest unfinished;                         // answers that broke off
    std::set<std::string, std::less<>> creating;  // request ids
    uint32_t creations = 0;                       // in progress, with or without request id
    uint64_t text_bytes = 0;
    bool blocked = false;
  };

  void Insert(std::string_view context_id, ContextHead head);
  // The record of a context that was not erased meanwhile.
  void Replace(std::string_view context_id, ContextRecord record);
  void Erase(std::string_view context_id);
  const ContextHead* Find(std::string_view context_id) const;  // null: there is none
  const std::unordered_map<std::string, ContextHead>& all() const { return heads_; }

  const App* FindApp(std::string_view app_id) const;  // null: nothing is known of it
  App& AddApp(std::string_view app_id) { return apps_[std::string(app_id)]; }  // if it is new

  // Of the next creation or use: above all of the records.
  uint64_t NextNumber() { return ++last_number_; }

 private:
  std::unordered_map<std::string, ContextHead> heads_;
  std::map<std::string, App, std::less<>> apps_;
  uint64_t last_number_ = 0;
};

}  // namespace withy::context_store
