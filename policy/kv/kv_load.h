// How far the load of a context is: which of its chunks are in place, being read, left to the
// worker to compute, or lost, and which layers of those being read have arrived. context_store and
// the worker hold a copy each and feed it the same events, so that both know the same. Pure.
// Neighbours: kv_load_source.h decides in the store which chunks are read and which are yielded;
// serving/session/context_kv.h asks in the worker what to compute next.
//
//   store                                            worker
//     KvLoad(chunks, layers)        -- opened -->      KvLoad(chunks, layers)
//     OnAsked(computed_before)    <-- yield! --        OnAsked(computed_before, now)
//     Apply(yielded: no chunk, or some)  -->           Apply(...)
//     Apply(a chunk cannot be read)      -->           Apply(...), then OnGivenUp(that chunk)
//     Apply(layers have arrived)         -->           Apply(...); no chunk is yielded any more
//     OnGivenUp(first claimed chunk) <-- claim --
//
// What changes a chunk is numbered. Events that come out of order are applied in order: so no layer
// counts as arrived for a chunk that was yielded, or lost, before that layer arrived.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace withy::policy {

// What the store tells the worker.
struct KvLoadEvent {
  enum class Kind : uint8_t {
    kLayers,   // leading layers of all chunks being read are in place
    kFailed,   // a chunk cannot be read: it and all later ones are of no use to the worker
    kYielded,  // answers an ask: chunks that were being read are to be computed; none: a refusal
  };
  Kind kind = Kind::kLayers;
  // kFailed, kYielded: the number of this change of the load, from 1 on. kLayers: of the last one
  // before it.
  uint32_t change = 0;
  uint32_t layers = 0;                // kLayers: how many
  std::vector<uint32_t> chunks = {};  // kFailed: one; kYielded: ascending
  uint64_t arrived_blocks = 0;        // kYielded: blocks (a layer of a chunk) read so far
};

// Of one load, from the opening of its lease to the lease's end; not thread-safe. Chunks are
// numbered by their position in the context. `now_ns`: any steady clock; only the worker's
// questions depend on it.
class KvLoad {
 public:
  enum class Chunk : uint8_t { kResident, kReading, kToCompute, kLost };
  static constexpr uint32_t kNone = UINT32_MAX;
  static constexpr uint32_t kAllLayers = UINT32_MAX;

  KvLoad() = default;  // nothing is to come
  KvLoad(std::vector<Chunk> chunks, uint32_t layers);

  // --- events
  // Returns false, and changes nothing, if it cannot be: a change that was made already, a yielded
  // chunk that is not being read. What was given up is passed over.
  bool Apply(const KvLoadEvent& event, int64_t now_ns = 0);
  // The worker asks for chunks to compute; it has computed those before `computed_before`.
  void OnAsked(uint32_t computed_before);
  // The worker does without the chunks from this one on: it claims and computes them.
  void OnGivenUp(uint32_t chunk);
  // The lease is over, or its worker is gone: nothing more is to come.
  void OnEnded() { OnGivenUp(0); }

  // --- what both ask
  // kLost: also of a chunk that was given up.
  Chunk state(uint32_t chunk) const {
    return chunk < chunks_.size() ? chunks_[chunk] : Chunk::kLost;
  }
  uint32_t chunks() const { return static_cast<uint32_t>(chunks_.size()); }
  uint32_t changes() const { return changes_; }
  // Leading layers in place of all chunks that are, or were, being read.
  uint32_t arrived() const { return arrived_; }
  bool reading() const { return count(Chunk::kReading) > 0; }
  bool asked() const { return asked_; }
  uint32_t computed_before() const { return computed_before_; }
  // Whether chunks may still be yielded: the worker does not attend to what is read yet.
  bool may_yield() const { return reading() && arrived_ == 0; }

  // --- what the worker asks
  // The first chunk of that state at or behind `from`; kNone: there is none.
  uint32_t Find(Chunk state, uint32_t from = 0) const;
  // Leading layers that a row of this chunk may attend in. kAllLayers: nothing that it attends to
  // is being read.
  uint32_t LayersFor(uint32_t chunk) const;
  // Whether to ask for chunks now. After a refusal only while the worker stands still, and after a
  // pause.
  bool MayAsk(int64_t now_ns) const;
  // The worker has nothing to compute until layers arrive.
  void BeginWait(int64_t now_ns);
  // It goes on. Returns since when it has waited; 0: it has not.
  int64_t EndWait();
  bool waits() const { return waits_since_ns_ != 0; }
  enum class Next : uint8_t { kNothing, kAsk, kGiveUp };
  // What a worker that waits is to do. kGiveUp: what it waits for is not expected to come.
  Next NextStep(int64_t now_ns) const;

 private:
  size_t count(Chunk state) const { return counts_[static_cast<size_t>(state)]; }
  void Set(uint32_t chunk, Chunk state);
  bool Change(const KvLoadEvent& event, int64_t now_ns);
  void ArriveUpTo(uint32_t layers);

  std::vector<Chunk> chunks_;
  std::array<size_t, 4> counts_ = {};  // of chunks, by state
  uint32_t layers_ = 0;                // of the model
  uint32_t arrived_ = 0;               // leading layers in place of what is being read
  uint32_t changes_ = 0;
  uint32_t computed_before_ = 0;
  bool asked_ = false;              // and not answered
  std::vector<KvLoadEvent> early_;  // wait for changes before them
  uint64_t arrived_blocks_ = 0;     // by the last answer
  int64_t refused_ns_ = 0;          // when the last ask was refused; 0: it was not
  int64_t waits_since_ns_ = 0;      // 0: it does not
  int64_t news_ns_ = 0;             // when the store last showed that the disk delivers
};

}  // namespace withy::policy
