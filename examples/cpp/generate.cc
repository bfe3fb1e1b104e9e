// A minimal client to copy from: sends a prompt to withy and prints the answer as it arrives. Needs
// only gRPC and the contract.
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
  request.mutable_sampling()->set_temperature(0);  // greedy; unset: the service's default
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
      std::cout << std::endl;
      if (!response.finished().explanation().empty())
        std::cerr << response.finished().explanation() << "\n";
      std::cerr << "TTFT " << latency.measured().ttft_ms() << " ms, TPOT "
                << latency.measured().tpot_ms() << " ms, SLO "
                << (latency.slo_met() ? "met" : "missed") << "\n";
    }
  }
  const grpc::Status status = reader->Finish();
  if (!status.ok()) {
    std::cerr << "withy-example: " << status.error_message() << "\n";
    if (status.error_code() == grpc::StatusCode::UNAVAILABLE) {
      std::cerr << "is withy running at " << argv[1]
                << "? `./withy up` or `systemctl start withy.target` starts it\n";
    }
  }
  if (!std::cout) std::cerr << "withy-example: the answer could not be printed\n";
  return status.ok() && std::cout ? 0 : 1;
}
