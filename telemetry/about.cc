#include "telemetry/about.h"

namespace withy::telemetry {

void RecordBuild(Recorder& recorder) {
  recorder
      .gauge({.name = "withy_build_info",
              .help = "1; the label says which version of withy this process is.",
              .label_key = "version",
              .label_value = WITHY_VERSION})
      .Set(1);
}

void RecordModel(Recorder& recorder, const ModelFacts& facts) {
  recorder
      .gauge({.name = "withy_model_info",
              .help = "1; the label says which model this process serves.",
              .label_key = "model",
              .label_value = facts.name})
      .Set(1);
  recorder
      .gauge({.name = "withy_device_info",
              .help = "1; the label says which kernels compute the model.",
              .label_key = "device",
              .label_value = facts.device})
      .Set(1);
  recorder
      .gauge({.name = "withy_calibration_timestamp_seconds",
              .help = "When the model was calibrated on this board; 0: it is not."})
      .Set(facts.calibrated_unix_s);
}

void RecordTls(Recorder& recorder, int64_t expires_unix_s, bool files_usable) {
  recorder
      .gauge({.name = "withy_tls_certificate_expiry_timestamp_seconds",
              .help = "When the TLS certificate in force expires."})
      .Set(expires_unix_s);
  recorder
      .gauge({.name = "withy_tls_files_usable",
              .help = "1; 0: the certificate or key as they are now cannot be used (the log says "
                      "why), and those read before stay in force."})
      .Set(files_usable ? 1 : 0);
}

}  // namespace withy::telemetry
