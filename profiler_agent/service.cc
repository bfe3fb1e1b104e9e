#include "profiler_agent/service.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/strings.h"
#include "profiler_agent/shares.h"
#include "profiler_agent/timeline.h"
#include "rpc/daemon.h"
#include "rpc/status.h"
#include "rpc/write_queue.h"
#include "withy/v1/profiler.grpc.pb.h"

namespace withy::profiler_agent {
namespace {

namespace proto = ::withy::v1;

constexpr uint32_t kDefaultSpans = 1000;
constexpr uint32_t kMaxSpans = 100'000;
constexpr uint32_t kDefaultCalls = 20;
constexpr uint32_t kMaxWindowS = 3600;
constexpr uint32_t kDefaultCaptureS = 5;
constexpr uint32_t kMaxCaptureS = 60;

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

void FillPhase(const PhaseRow& row, double share, proto::PhaseSummary* phase) {
  phase->set_process(row.process);
  phase->set_name(row.name);
  phase->set_kind(KindText(row.kind));
  phase->set_count(row.histogram.count());
  phase->set_recorded(row.histogram.added());
  phase->set_mean_ms(row.histogram.mean_ns() * 1e-6);
  phase->set_p50_ms(row.histogram.QuantileNs(0.50) * 1e-6);
  phase->set_p95_ms(row.histogram.QuantileNs(0.95) * 1e-6);
  phase->set_p99_ms(row.histogram.QuantileNs(0.99) * 1e-6);
  phase->set_total_ms(row.histogram.total_ns() * 1e-6);
  phase->set_share(share);
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
  out->set_weight(std::max<uint32_t>(row.span.weight, 1));
}

// A capture that waits for its end on a thread of its own: encoding it takes longer than a ring
// lasts, so the agent's thread cannot do it. One at a time.
class CaptureThread {
 public:
  explicit CaptureThread(Agent& agent) : agent_(agent) {}
  ~CaptureThread() {
    Stop();
    absl::MutexLock lock(&start_mutex_);
    if (thread_.joinable()) thread_.join();
  }

  using Queue = rpc::WriteQueue<proto::CaptureTimelineResponse>;

  void Start(const std::shared_ptr<Queue>& queue, uint32_t seconds) {
    absl::MutexLock lock(&start_mutex_);
    absl::Status begun = agent_.BeginCapture(absl::Seconds(seconds));
    if (begun.ok() && Busy()) {
      agent_.EndCapture();
      begun = absl::FailedPreconditionError(
          "another capture is still being sent to its client: try again when that has it");
    }
    if (!begun.ok()) {
      queue->Close(begun);
      return;
    }
    if (thread_.joinable()) thread_.join();  // it has sent everything
    SetBusy(true);
    queue->Push({});
    auto cancelled = std::make_shared<bool>(false);
    queue->OnCancelled([this, cancelled] {
      absl::MutexLock inner(&mutex_);
      *cancelled = true;
    });
    thread_ = std::thread([this, queue, cancelled, seconds] {
      {
        absl::MutexLock inner(&mutex_);
        const auto over = [&] { return stopping_ || *cancelled; };
        mutex_.AwaitWithTimeout(absl::Condition(&over), absl::Seconds(seconds));
      }
      Send(agent_.EndCapture(), *queue);
      SetBusy(false);
    });
  }

  void Stop() {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }

 private:
  static void Send(const Captured& captured, Queue& queue) {
    WriteTimeline(captured.set, ReadTimelineClocks(), [&queue](std::string piece) {
      proto::CaptureTimelineResponse message;
      message.set_trace(std::move(piece));
      return queue.Push(std::move(message));
    });
    proto::CaptureTimelineResponse last;
    proto::TimelineSummary* summary = last.mutable_summary();
    summary->set_spans(captured.set.spans.size());
    summary->set_dropped(captured.left_out);
    summary->set_lost(captured.lost);
    summary->set_seconds(static_cast<double>(captured.ended_ns - captured.started_ns) /
                         kNanosPerSecond);
    queue.Push(std::move(last));
    queue.Close(absl::OkStatus());
  }

  bool Busy() {
    absl::MutexLock lock(&mutex_);
    return busy_;
  }
  void SetBusy(bool busy) {
    absl::MutexLock lock(&mutex_);
    busy_ = busy;
  }

  Agent& agent_;
  absl::Mutex start_mutex_;  // not held by the thread itself
  std::thread thread_ ABSL_GUARDED_BY(start_mutex_);
  absl::Mutex mutex_ ABSL_ACQUIRED_AFTER(start_mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool busy_ ABSL_GUARDED_BY(mutex_) = false;  // from the start of a capture until it is sent
};

class ProfilerService final : public proto::Profiler::CallbackService, public ProfilerServer {
 public:
  ProfilerService(Agent& agent, std::string metrics_address,
                  std::function<std::string(bool lean)> metrics, rpc::OpenStreams& answers)
      : agent_(agent),
        metrics_address_(std::move(metrics_address)),
        metrics_(std::move(metrics)),
        answers_(answers),
        capture_(agent) {}

  grpc::Service* service() override { return this; }

  void Stop() override {
    capture_.Stop();
    std::vector<std::shared_ptr<WatchQueue>> watches;
    {
      absl::MutexLock lock(&watches_mutex_);
      stopping_ = true;
      for (const std::weak_ptr<WatchQueue>& watch : watches_) {
        if (auto queue = watch.lock()) watches.push_back(std::move(queue));
      }
    }
    for (const auto& queue : watches) queue->Close(Stopping());
  }

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
    const std::string& kind = request->kind();
    if (!kind.empty() && kind != "phase" && kind != "kernel") {
      return Finish(context, absl::InvalidArgumentError(absl::StrCat(
                                 "kind is \"", kind.substr(0, 64),
                                 "\": must be \"phase\", \"kernel\" or empty for all")));
    }
    if (request->window_s() > kMaxWindowS) {
      return Finish(context, absl::InvalidArgumentError(
                                 absl::StrCat("window_s is ", request->window_s(), ": at most ",
                                              kMaxWindowS, "; 0 means since the agent started")));
    }
    double covered_s = agent_.age_s();
    const std::vector<PhaseRow> rows =
        request->window_s() == 0
            ? agent_.Phases()
            : agent_.PhasesWithin(absl::Seconds(request->window_s()), &covered_s);
    response->set_covered_s(covered_s);
    const Shares shares(rows);
    for (const PhaseRow& row : rows) {
      const bool kernel = row.kind == telemetry::SpanKind::kKernel;
      if (!kind.empty() && kernel != (kind == "kernel")) continue;
      FillPhase(row, shares.Of(row), response->add_phases());
    }
    return Finish(context, absl::OkStatus());
  }

  grpc::ServerUnaryReactor* ReportCall(grpc::CallbackServerContext* context,
                                       const proto::ReportCallRequest* request,
                                       proto::ReportCallResponse* /*response*/) override {
    agent_.calls().Add(request->report());
    return Finish(context, absl::OkStatus());
  }

  grpc::ServerUnaryReactor* ListCalls(grpc::CallbackServerContext* context,
                                      const proto::ListCallsRequest* request,
                                      proto::ListCallsResponse* response) override {
    if (request->limit() > CallLog::kCalls) {
      return Finish(
          context, absl::InvalidArgumentError(absl::StrCat("limit ", request->limit(), ": at most ",
                                                           CallLog::kCalls, " calls")));
    }
    const uint32_t limit = request->limit() == 0 ? kDefaultCalls : request->limit();
    for (proto::CallReport& report : agent_.calls().Latest(limit)) {
      *response->add_calls() = std::move(report);
    }
    return Finish(context, absl::OkStatus());
  }

  grpc::ServerUnaryReactor* ExplainCall(grpc::CallbackServerContext* context,
                                        const proto::ExplainCallRequest* request,
                                        proto::ExplainCallResponse* response) override {
    const auto report = agent_.calls().Find(request->call_id(), request->request_id());
    if (!report.has_value()) {
      return Finish(context,
                    absl::NotFoundError(absl::StrCat(
                        "it is none of the last ", CallLog::kCalls,
                        " calls that have ended since profiler_agent started: `withyctl explain` "
                        "lists them")));
    }
    const absl::Duration since = absl::Nanoseconds(agent_.NowNanos() - report->arrived_ns());
    *response = Explain(*report, agent_.SpansWithin(since, Profile::kSpanLimit),
                        agent_.calls().Latest(CallLog::kCalls));
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
        metrics_address_.empty() ? ", metrics off"
                                 : absl::StrCat(", metrics on ", metrics_address_, "/metrics"),
        overflows == 0 ? ""
                       : absl::StrCat(", ", Counted(overflows, "span"), " without a histogram")));
    response->set_rings(info.rings);
    response->set_spans(info.spans);
    response->set_dropped_spans(info.dropped_spans);
    response->set_metrics_address(metrics_address_);
    return Finish(context, absl::OkStatus());
  }

  grpc::ServerUnaryReactor* GetMetrics(grpc::CallbackServerContext* context,
                                       const proto::GetMetricsRequest* request,
                                       proto::GetMetricsResponse* response) override {
    response->set_text(metrics_(request->lean()));
    return Finish(context, absl::OkStatus());
  }

  grpc::ServerWriteReactor<proto::WatchSpansResponse>* WatchSpans(
      grpc::CallbackServerContext* context, const proto::WatchSpansRequest* request) override {
    const auto queue = WatchQueue::Create(answers_, context);
    {
      absl::MutexLock lock(&watches_mutex_);
      if (stopping_) {
        queue->Close(Stopping());
        return queue->reactor();
      }
      std::erase_if(watches_, [](const auto& watch) { return watch.expired(); });
      watches_.push_back(queue);
    }
    uint64_t dropped = 0;
    const absl::Status watching =
        agent_.Watch({request->call_id(), request->kernels()},
                     [queue, dropped](const std::vector<SpanRow>& rows, uint64_t left_out) mutable {
                       dropped += left_out;
                       if (!rows.empty() && !queue->HasRoom()) {
                         dropped += rows.size();
                         return !queue->cancelled();
                       }
                       if (rows.empty()) return !queue->cancelled();
                       proto::WatchSpansResponse message;
                       message.set_dropped(dropped);
                       for (const SpanRow& row : rows) FillSpan(row, message.add_spans());
                       return queue->Push(std::move(message));
                     });
    if (watching.ok()) {
      queue->Push({});
      // Only the end that the server sets frees a call whose client has left.
      queue->OnCancelled([watch = std::weak_ptr<WatchQueue>(queue)] {
        if (const auto left = watch.lock()) left->Close(absl::CancelledError("the client left"));
      });
    } else {
      queue->Close(watching);
    }
    return queue->reactor();
  }

  grpc::ServerWriteReactor<proto::CaptureTimelineResponse>* CaptureTimeline(
      grpc::CallbackServerContext* context, const proto::CaptureTimelineRequest* request) override {
    const auto queue = CaptureThread::Queue::Create(answers_, context);
    const uint32_t seconds = request->seconds() == 0 ? kDefaultCaptureS : request->seconds();
    if (seconds > kMaxCaptureS) {
      queue->Close(absl::InvalidArgumentError(absl::StrCat(
          "seconds is ", seconds, ": must be from 1 to ", kMaxCaptureS, "; 0 means 5")));
    } else {
      capture_.Start(queue, seconds);
    }
    return queue->reactor();
  }

 private:
  using WatchQueue = rpc::WriteQueue<proto::WatchSpansResponse>;

  static absl::Status Stopping() {
    return absl::UnavailableError("the profiler agent stops: try again when it runs");
  }
  static grpc::ServerUnaryReactor* Finish(grpc::CallbackServerContext* context,
                                          const absl::Status& status) {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(rpc::ToGrpc(status));
    return reactor;
  }

  Agent& agent_;
  const std::string metrics_address_;
  const std::function<std::string(bool lean)> metrics_;
  rpc::OpenStreams& answers_;
  CaptureThread capture_;
  absl::Mutex watches_mutex_;
  bool stopping_ ABSL_GUARDED_BY(watches_mutex_) = false;
  std::vector<std::weak_ptr<WatchQueue>> watches_ ABSL_GUARDED_BY(watches_mutex_);
};

}  // namespace

std::unique_ptr<ProfilerServer> MakeProfilerServer(Agent& agent, std::string metrics_address,
                                                   std::function<std::string(bool lean)> metrics,
                                                   rpc::OpenStreams& answers) {
  return std::make_unique<ProfilerService>(agent, std::move(metrics_address), std::move(metrics),
                                           answers);
}

}  // namespace withy::profiler_agent
