#include "orchestrator/digest.h"

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
  asked.clear_report_progress();  // says nothing of the answer
  std::string bytes;
  {
    google::protobuf::io::StringOutputStream out(&bytes);
    google::protobuf::io::CodedOutputStream coded(&out);
    coded.SetSerializationDeterministic(true);
    asked.SerializeToCodedStream(&coded);
  }
  return Sha256(bytes);
}

}  // namespace withy::orchestrator
