#include "orchestrator/call/refusals.h"

#include <google/protobuf/descriptor.h>

#include <algorithm>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/ids.h"
#include "base/strings.h"
#include "base/utf8.h"
#include "rpc/status.h"
#include "withy/v1/llm_service.pb.h"

namespace withy::orchestrator {
namespace {

constexpr size_t kMostErrorBytes = 1024;  // of a report

void AddFields(const google::protobuf::FileDescriptor& file, std::set<std::string>* names) {
  for (int m = 0; m < file.message_type_count(); ++m) {
    const google::protobuf::Descriptor& message = *file.message_type(m);
    for (int f = 0; f < message.field_count(); ++f) names->insert(message.field(f)->name());
  }
}

// Of the contract's messages.
const std::set<std::string>& FieldNames() {
  static const std::set<std::string>* const names = [] {
    auto* const all = new std::set<std::string>;  // lives as long as the process
    const google::protobuf::FileDescriptor& file = *v1::GenerateRequest::descriptor()->file();
    AddFields(file, all);
    for (int i = 0; i < file.dependency_count(); ++i) AddFields(*file.dependency(i), all);
    return all;
  }();
  return *names;
}

// "limits.max_tokens" of "limits.max_tokens is 0: …". Empty: the message begins with no field.
std::string FieldOf(std::string_view message) {
  const size_t end = std::min(message.find_first_of(" :"), message.size());
  const std::string path(message.substr(0, end));
  const std::vector<std::string> parts = absl::StrSplit(path, '.');
  const bool known = std::all_of(parts.begin(), parts.end(), [](const std::string& part) {
    return FieldNames().contains(part.substr(0, part.find('[')));
  });
  if (!known) return "";
  std::string field;
  for (const std::string& part : parts) {
    absl::StrAppend(&field, field.empty() ? "" : ".", part.substr(0, part.find('[')));
  }
  return field;
}

}  // namespace

void FillError(const absl::Status& status, v1::CallReport* report) {
  report->set_status_code(static_cast<uint32_t>(status.raw_code()));
  if (status.ok()) return;
  report->set_reason(rpc::ReasonOf(status));
  const std::string message(status.message());
  if (!absl::IsInvalidArgument(status)) {
    report->set_error(ValidUtf8(message.substr(0, kMostErrorBytes)));
  } else if (const std::string field = FieldOf(message); !field.empty()) {
    report->set_error(absl::StrCat(field, " is not valid"));
  }
}

void Refusals::Tell(RefusedCall call, const absl::Status& status) {
  if (status.ok() || absl::IsCancelled(status) || absl::IsUnauthenticated(status)) return;
  v1::CallReport report;
  FillError(status, &report);
  if (call.app_id.empty()) call.app_id = apps_.Recall(call.caller);
  const int64_t now_ns = clock_.SteadyNanos();
  report.set_call_id(call.id == 0 ? RandomId64() : call.id);
  report.set_app(apps_.NameOf(call.app_id));
  report.set_method(std::move(call.method));
  report.set_request_id(ValidUtf8(std::move(call.request_id)));
  report.set_arrived_ns(call.arrived_ns == 0 ? now_ns : call.arrived_ns);
  report.set_ended_ns(now_ns);
  report.set_refusals(1);
  backends_.ReportCall(std::move(report));
}

}  // namespace withy::orchestrator
