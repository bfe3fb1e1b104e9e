// What a process is, as metrics with the value 1 whose label says it: so a fleet's operator sees
// which board runs what. Neighbour: recorder.h.
#pragma once

#include <cstdint>
#include <string_view>

#include "telemetry/recorder.h"

namespace withy::telemetry {

// withy_build_info{version}.
void RecordBuild(Recorder& recorder);

// Of a worker's model.
struct ModelFacts {
  std::string_view name;
  std::string_view device;        // its kernels: "avx512", "cuda-sm_87"
  int64_t calibrated_unix_s = 0;  // 0: it has no calibration that is valid on this board
};

// withy_model_info{model}, withy_device_info{device}, withy_calibration_timestamp_seconds.
void RecordModel(Recorder& recorder, const ModelFacts& facts);

// withy_tls_certificate_expiry_timestamp_seconds of the certificate in force, and
// withy_tls_files_usable: 0 where the files as they are now cannot be used.
void RecordTls(Recorder& recorder, int64_t expires_unix_s, bool files_usable);

}  // namespace withy::telemetry
