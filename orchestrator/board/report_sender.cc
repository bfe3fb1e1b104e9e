#include "orchestrator/board/report_sender.h"

#include <algorithm>
#include <utility>

#include "rpc/refused_calls.h"

namespace withy::orchestrator {

std::vector<ReportSender::Refusal>::iterator ReportSender::Find(const v1::CallReport& report) {
  return std::find_if(refusals_.begin(), refusals_.end(), [&](const Refusal& refusal) {
    return rpc::EqualRefusals(refusal.sent, report);
  });
}

void ReportSender::Add(v1::CallReport report) {
  {
    absl::MutexLock lock(&mutex_);
    if (const auto same = Find(report); same != refusals_.end()) {
      if (same->later.has_value()) rpc::CountRefusals(*same->later, &report);
      same->later = std::move(report);
      return;
    }
    if (under_way_ >= kMostUnderWay) return;
    ++under_way_;
    if (rpc::IsRefusal(report)) refusals_.push_back({.sent = report});
  }
  Launch(std::move(report));
}

void ReportSender::Launch(v1::CallReport report) {
  v1::CallReport sent = report;
  send_(std::move(report), [self = shared_from_this(), sent = std::move(sent)] {
    if (auto next = self->Done(sent)) self->Launch(*std::move(next));
  });
}

std::optional<v1::CallReport> ReportSender::Done(const v1::CallReport& sent) {
  absl::MutexLock lock(&mutex_);
  const auto refusal = Find(sent);
  if (refusal != refusals_.end() && refusal->later.has_value()) {
    return std::exchange(refusal->later, std::nullopt);
  }
  if (refusal != refusals_.end()) refusals_.erase(refusal);
  --under_way_;
  return std::nullopt;
}

}  // namespace withy::orchestrator
