// Fills the table of slo_times.h on this machine: passes of the engine at every level, readings of
// the TLM, copying and loading of weights. Medians of interleaved rounds. Neighbours:
// slo_board.h spends what is measured here.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/slo/slo_times.h"
#include "engine/encoder/tlm.h"
#include "engine/model/model.h"

namespace withy::bench {

// By level, ascending. Errors: as engine::Model::Forward.
absl::StatusOr<std::vector<VariantTimes>> MeasureVariants(engine::Model& model, int rounds);

// Over pieces of `text`, which is repeated as far as it is needed. Errors: as engine::Tlm::Read.
absl::StatusOr<TlmTimes> MeasureTlm(engine::Tlm& tlm, std::string_view text, int rounds);

// Copying: from the mapped file into memory that is in use already. Loading: from a file that the
// system has been told to forget, until a first token has been computed, less the same token again.
// `packed_path`: that no one has open. Errors: as engine::Model::Open; from the disk.
absl::StatusOr<SwitchTimes> MeasureSwitch(const std::string& packed_path,
                                          const engine::ModelOptions& options, int rounds);

}  // namespace withy::bench
