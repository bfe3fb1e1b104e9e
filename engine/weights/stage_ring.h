// Which stages of a pass have their streamed weights in which slot of a ring of buffers, and what
// is read next. A stage is a product of a layer; passes use the stages 0, 1, … in order and begin
// again. Neighbours: weight_stream.h reads and waits as it says. Pure: no I/O, no clock, no locks.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace withy::engine {

// A read that is due: of the stage, what `to_level` needs and `from_level` (-1: nothing) does not.
struct StageRead {
  int32_t stage = 0;
  int32_t from_level = -1;
  int32_t to_level = 0;
};

// Levels are indices, ascending; a level needs what every lower level needs. Always: a slot holds
// one stage; memory of a slot is not given to another stage while reads into it are under way. Not
// thread-safe.
class StageRing {
 public:
  // Slot of stage s: s % slots. Begins to read ahead at stage 0 and `level`.
  StageRing(int32_t stages, int32_t slots, int32_t level);

  enum class State : uint8_t {
    kAbsent,   // not asked for at this level
    kReading,  // reads are under way or due
    kReady,
    kFailed,  // a read of it has failed
  };

  int32_t SlotOf(int32_t stage) const { return stage % slots_count_; }
  State StateOf(int32_t stage, int32_t level) const;
  // Whether the stage is still one of those that the ring holds or reads.
  bool Holds(int32_t stage) const;

  // A pass needs the stage at the level next: stages before it are released. If the ring holds it,
  // what is read stays; else all that it holds is given up, and reading begins at this stage.
  void Demand(int32_t stage, int32_t level);
  // Stages that are read ahead from now on are read for this level.
  void ReadAheadAt(int32_t level) { level_ = level; }
  // The stage was used: its slot, and those of stages before it, are free for later ones.
  void Release(int32_t stage);
  // Gives up what the ring holds; nothing is read until the next Demand.
  void Reset();

  // The next read that may begin now; marks it as under way. Finished must follow for its slot.
  std::optional<StageRead> NextRead();
  // The read into a slot that NextRead gave has ended.
  void Finished(int32_t slot, bool ok);

 private:
  struct Slot {
    int32_t stage = -1;  // last owner
    int32_t level = -1;  // read or being read up to this level
    int32_t wanted = -1;
    int32_t reads = 0;  // under way, also of an owner that was given up
    bool failed = false;
  };

  int32_t After(int32_t stage, int32_t steps) const { return (stage + steps) % stages_; }
  Slot& SlotFor(int32_t stage) { return slots_[static_cast<size_t>(SlotOf(stage))]; }
  const Slot& SlotFor(int32_t stage) const { return slots_[static_cast<size_t>(SlotOf(stage))]; }

  const int32_t stages_;
  const int32_t slots_count_;
  std::vector<Slot> slots_;
  int32_t first_ = 0;  // oldest stage that is held
  int32_t count_ = 0;  // stages held: first_, first_ + 1, …, modulo the number of stages
  int32_t level_;      // at which stages are read ahead
  bool idle_ = false;  // after Reset
};

}  // namespace withy::engine
