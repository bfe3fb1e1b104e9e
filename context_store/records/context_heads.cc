#include "context_store/records/context_heads.h"

#include <algorithm>
#include <utility>

namespace withy::context_store {
namespace {

ContextHeads::Order OrderOf(std::string_view context_id, const ContextRecord& record) {
  return {-static_cast<int64_t>(record.created_number), -record.created_unix_ns,
          std::string(context_id)};
}

void NoteUnfinished(const ContextRecord& record, std::string_view context_id,
                    ContextHeads::ByRequest* by_request) {
  for (const UnfinishedExchange& exchange : record.unfinished) {
    by_request->insert_or_assign(exchange.request_id, std::string(context_id));
  }
}

void ForgetUnfinished(const ContextRecord& record, std::string_view context_id,
                      ContextHeads::ByRequest* by_request) {
  for (const UnfinishedExchange& exchange : record.unfinished) {
    const auto known = by_request->find(exchange.request_id);
    if (known != by_request->end() && known->second == context_id) by_request->erase(known);
  }
}

}  // namespace

void ContextHeads::Insert(std::string_view context_id, ContextHead head) {
  App& app = AddApp(head.app_id);
  app.contexts.insert(OrderOf(context_id, head.record));
  app.text_bytes += head.record.text_bytes;
  last_number_ = std::max({last_number_, head.record.created_number, head.record.used_number});
  if (!head.record.create_request_id.empty()) {
    app.created.insert_or_assign(head.record.create_request_id, std::string(context_id));
  }
  NoteUnfinished(head.record, context_id, &app.unfinished);
  heads_.insert_or_assign(std::string(context_id), std::move(head));
}

void ContextHeads::Replace(std::string_view context_id, ContextRecord record) {
  const auto found = heads_.find(std::string(context_id));
  if (found == heads_.end()) return;
  ContextRecord& before = found->second.record;
  App& app = AddApp(found->second.app_id);
  ForgetUnfinished(before, context_id, &app.unfinished);
  NoteUnfinished(record, context_id, &app.unfinished);
  app.text_bytes += record.text_bytes - before.text_bytes;
  before = std::move(record);
}

void ContextHeads::Erase(std::string_view context_id) {
  const auto found = heads_.find(std::string(context_id));
  if (found == heads_.end()) return;
  const ContextRecord& record = found->second.record;
  App& app = AddApp(found->second.app_id);
  app.contexts.erase(OrderOf(context_id, record));
  app.text_bytes -= record.text_bytes;
  app.created.erase(record.create_request_id);
  ForgetUnfinished(record, context_id, &app.unfinished);
  heads_.erase(found);
}

const ContextHead* ContextHeads::Find(std::string_view context_id) const {
  const auto found = heads_.find(std::string(context_id));
  return found == heads_.end() ? nullptr : &found->second;
}

const ContextHeads::App* ContextHeads::FindApp(std::string_view app_id) const {
  const auto found = apps_.find(app_id);
  return found == apps_.end() ? nullptr : &found->second;
}

}  // namespace withy::context_store
