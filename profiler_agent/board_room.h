// What the board has left of disk and memory, as gauges. Neighbour: agent.h has it look.
#pragma once

#include <cstdint>
#include <string>

#include "telemetry/recorder.h"

namespace withy::profiler_agent {

// For one thread at a time.
class BoardRoom {
 public:
  // `state_dir` is on the disk that is looked at; empty: nothing is. `recorder` must outlive it.
  BoardRoom(std::string state_dir, telemetry::Recorder& recorder);

  // Sets the gauges, at most every ten seconds. A gauge whose figure the system does not tell does
  // not exist.
  void Look(int64_t now_ns);

 private:
  const std::string state_dir_;
  telemetry::Recorder& recorder_;
  int64_t looked_ns_ = 0;
};

}  // namespace withy::profiler_agent
