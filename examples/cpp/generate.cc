// Asks withy for an answer and prints it as it comes: a client to copy from. Needs only gRPC and
// the contract.
//   export WITHY_TOKEN=$(withyctl apps bind my.app --print)
//   withy-example unix:/run/withy/withy.sock "Good morning"
#include <grpcpp/grpcpp.h>

#include <chrono>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <string>

#include "withy/v1/llm_service.grpc.pb.h"

int main(int argc, char** argv) {
  const char* token = std::getenv("WITHY_TOKEN");
  if (argc != 3 || token == nullptr) {
    std::cerr << "usage: WITHY_TOKEN=$(withyctl apps bind NAME --print) withy-example ADDRESS "
                 "PROMPT\n";
    return 2;
  }
  const auto channel = grpc::CreateChannel(argv[1], grpc::InsecureChannelCredentials());
  const auto service = withy::v1::LlmService::NewStub(channel);

  withy::v1::GenerateRequest request;
  auto* message = request.mutable_prompt()->mutable_messages()->add_messages();
  message->set_role("user");
  message->set_content(argv[2]);
  request.mutable_limits()->set_max_tokens(128);
  request.mutable_slo()->set_ttft_ms(500);

  grpc::ClientContext context;
  context.AddMetadata("authorization", std::string("Bearer ") + token);
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::minutes(2));
  const auto reader = service->Generate(&context, request);
  withy::v1::GenerateResponse response;
  while (reader->Read(&response)) {
    if (response.has_started()) std::cerr << response.started().decision().explanation() << "\n";
    if (response.has_delta()) std::cout << response.delta().text() << std::flush;
    if (response.has_finished()) {
      const auto& latency = response.finished().latency();
      std::cout << "\n";
      std::cerr << "TTFT " << latency.measured().ttft_ms() << " ms, TPOT "
                << latency.measured().tpot_ms() << " ms, SLO "
                << (latency.slo_met() ? "met" : "missed") << "\n";
    }
  }
  const grpc::Status status = reader->Finish();
  if (!status.ok()) std::cerr << "withy-example: " << status.error_message() << "\n";
  return status.ok() ? 0 : 1;
}
