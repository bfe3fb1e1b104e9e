#include "profiler_agent/service.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/strings.h"
#include "rpc/daemon.h"
#include "rpc/status.h"
#include "withy/v1/profiler.grpc.pb.h"

namespace withy::profiler_agent {
namespace {

namespace proto = ::withy::v1;

constexpr uint32_t kDefaultSpans = 1000;
constexpr uint32_t kMaxSpans = 100'000;

const char* KindText(telemetry::SpanKind kind) {
  switch (kind) {
    case telemetry::SpanKind::kPhase:
      return "phase";
    case telemetry::SpanKind::kKernel:
      return "kernel";
    case telemetry::SpanKind::kIo:
      return "io";
    case telemetry::SpanKind::kIdle:
      return "idle";
  }
  return "phase";
}

void FillSpan(const SpanRow& row, proto::Span* out) {
  out->set_process(row.process);
  out->set_pid(row.pid);
  out->set_thread(row.span.thread);
  out->set_name(row.name);
  out->set_kind(KindText(row.span.kind));
  out->set_call_id(row.span.call_id);
  out->set_sequence(row.span.sequence);
  out->set_queued_ns(row.span.queued_ns);
  out->set_submitted_ns(row.span.submitted_ns);
  out->set_started_ns(row.span.started_ns);
  out->set_ended_ns(row.span.ended_ns);
  out->set_value(row.span.value);
}

class ProfilerService final : public proto::Profiler::CallbackService {
 public:
  ProfilerService(const Agent& agent, std::string metrics_address)
      : agent_(agent), metrics_address_(std::move(metrics_address)) {}

  grpc::ServerUnaryReactor* GetSpans(grpc::CallbackServerContext* context,
                                     const proto::GetSpansRequest* request,
                                     proto::GetSpansResponse* response) override {
    if (request->limit() > kMaxSpans) {
      return Finish(context, absl::InvalidArgumentError(absl::StrCat(
                                 "limit ", request->limit(), ": at most ", kMaxSpans, " spans")));
    }
    const uint32_t limit = request->limit() == 0 ? kDefaultSpans : request->limit();
    for (const SpanRow& row : agent_.Spans(request->call_id(), limit)) {
      FillSpan(row, response->add_spans());
    }
    return Finish(context, absl::OkStatus());
  }

  grpc::ServerUnaryReactor* GetPhases(grpc::CallbackServerContext* context,
                                      const proto::GetPhasesRequest* request,
                                      proto::GetPhasesResponse* response) override {
    for (const PhaseRow& row : agent_.Phases()) {
      proto::PhaseSummary* phase = response->add_phases();
      phase->set_process(row.process);
      phase->set_name(row.name);
      phase->set_count(row.histogram.count());
      phase->set_mean_ms(row.histogram.mean_ns() * 1e-6);
      phase->set_p50_ms(row.histogram.QuantileNs(0.50) * 1e-6);
      phase->set_p99_ms(row.histogram.QuantileNs(0.99) * 1e-6);
      phase->set_total_ms(row.histogram.total_ns() * 1e-6);
    }
    return Finish(context, absl::OkStatus());
  }

  grpc::ServerUnaryReactor* GetProfilerInfo(grpc::CallbackServerContext* context,
                                            const proto::GetProfilerInfoRequest* request,
                                            proto::GetProfilerInfoResponse* response) override {
    const AgentInfo info = agent_.Info();
    rpc::FillProcessStatus("profiler_agent", response->mutable_status());
    const uint64_t overflows = agent_.phase_overflows();
    response->mutable_status()->set_detail(absl::StrCat(
        "reads ", info.processes, info.processes == 1 ? " process" : " processes",
        metrics_address_.empty()
            ? ", metrics off"
            : absl::StrCat(", metrics on http://", metrics_address_, "/metrics"),
        overflows == 0 ? ""
                       : absl::StrCat(", ", Counted(overflows, "span"), " without a histogram")));
    response->set_rings(info.rings);
    response->set_spans(info.spans);
    response->set_dropped_spans(info.dropped_spans);
    response->set_metrics_address(metrics_address_);
    return Finish(context, absl::OkStatus());
  }

 private:
  static grpc::ServerUnaryReactor* Finish(grpc::CallbackServerContext* context,
                                          const absl::Status& status) {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(rpc::ToGrpc(status));
    return reactor;
  }

  const Agent& agent_;
  const std::string metrics_address_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeProfilerService(const Agent& agent,
                                                   std::string metrics_address) {
  return std::make_unique<ProfilerService>(agent, std::move(metrics_address));
}

}  // namespace withy::profiler_agent
