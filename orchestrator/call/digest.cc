#include "orchestrator/call/digest.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <openssl/sha.h>

namespace withy::orchestrator {

std::string Sha256(std::string_view bytes) {
  std::string digest(SHA256_DIGEST_LENGTH, '\0');
  SHA256(reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(),
         reinterpret_cast<unsigned char*>(digest.data()));
  return digest;
}

std::string RequestDigest(const v1::GenerateRequest& request) {
  v1::GenerateRequest asked = request;
  asked.clear_request_id();
  // These say nothing of the answer.
  asked.clear_report_progress();
  asked.clear_speculation();
  std::string bytes;
  {
    google::protobuf::io::StringOutputStream out(&bytes);
    google::protobuf::io::CodedOutputStream coded(&out);
    coded.SetSerializationDeterministic(true);
    asked.SerializeToCodedStream(&coded);
  }
  return Sha256(bytes);
}

uint64_t SeedOf(std::string_view app_id, std::string_view request_id, std::string_view digest) {
  std::string bytes;
  for (const std::string_view part : {app_id, request_id, digest}) {
    bytes.append(std::to_string(part.size())).append(":").append(part);
  }
  uint64_t seed = 0;
  const std::string hash = Sha256(bytes);
  for (size_t i = 0; i < sizeof(seed); ++i) seed = seed << 8 | static_cast<uint8_t>(hash[i]);
  return seed & kMaxExactSeed;
}

}  // namespace withy::orchestrator
