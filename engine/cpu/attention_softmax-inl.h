// Attention's second part: scores become probabilities, run by run, and runs are merged. Included
// by attention-inl.h.
namespace withy::engine::WITHY_TARGET {

// The part of SoftmaxRun for groups of one width: the V scales of the keys, their maximum, and the
// maximum of the scores. `mask` is for the last group that the query sees; `hidden` keys come
// before the first one that it sees.
template <VWidth kWidth>
WITHY_INLINE void FindMaxima(const Query& query, int groups, I16 mask, int hidden,
                             const AttentionScratch& s, float* scores, float* v_scale, F16* max,
                             F16* top) {
  const RunBlocks& run = *query.run;
  const GroupList& list = run.of_width[kWidth];
  const int count = list.Below(groups);
  F16 highest = *max;
  F16 largest = Zero();
  for (int n = 0; n < count; ++n) {
    const int j = list.group[n];
    const KvBlock& block = run.block[j];
    const std::byte* scales = block.data + s.At(block.format).v_scale;
    F16 score = Load(scores + j * kChunkTokens);
    F16 scale =
        kWidth == kV8 ? Load(reinterpret_cast<const float*>(scales))
        : kWidth == kVHalf
            ? Zero()
            : LoadU8(scales) * Splat(LoadUnits(block.data + s.At(block.format).units).v_scale);
    if (j == groups - 1) {
      score = Select(mask, score, Splat(kLowest));
      scale = Select(mask, scale, Zero());
      Store(score, scores + j * kChunkTokens);
    }
    if (j * kChunkTokens < hidden) {
      const I16 before = LanesBelow(hidden - j * kChunkTokens);
      score = Select(before, Splat(kLowest), score);
      scale = Select(before, Zero(), scale);
      Store(score, scores + j * kChunkTokens);
    }
    Store(scale, v_scale + j * kChunkTokens);
    highest = Max(highest, score);
    largest = Max(largest, scale);
  }
  *max = highest;
  *top = largest;
}

// The part of SoftmaxRun that turns scores into probabilities, for groups of one width.
template <VWidth kWidth>
WITHY_INLINE void FindUnits(int run, int groups, F16 max, float largest, const float* v_scale,
                            AttentionScratch* s, int i, F16* total) {
  const RunBlocks& blocks = *s->query[i].run;
  const GroupList& list = blocks.of_width[kWidth];
  const int count = list.Below(groups);
  float* density = s->density[i] == nullptr ? nullptr : s->density[i] + run * kRunGroups;
  uint8_t* high = s->halves[i][0];
  uint8_t* low = s->halves[i][1];
  const F16 to_units = Splat(largest > 1e-30f ? 16383.0f / largest : 0.0f);
  F16 sum = *total;
  F16 zeros = Zero();
  for (int n = 0; n < count; ++n) {
    const int j = list.group[n];
    float* scores = s->scores[i] + j * kChunkTokens;
    const F16 p = Exp(Load(scores) - max);
    sum = sum + p;
    if (density != nullptr) density[j] = Sum(p);
    if (kWidth == kVHalf) {
      Store(p, scores);
      continue;
    }
    // This order of multiplication avoids denormal products of a small probability and a small
    // scale, which cost a hundred cycles each.
    const I16 units = RoundToInt(p * (Load(v_scale + j * kChunkTokens) * to_units));
#ifdef WITHY_PAIR_SUMS
    if (kWidth == kV8) {
      StoreShorts(units, s->units[i] + j * kChunkTokens);
      continue;
    }
#endif
    StoreBytes(ShiftRight<7>(units), reinterpret_cast<int8_t*>(high + j * kChunkTokens));
    StoreBytes(units & SplatI(127), reinterpret_cast<int8_t*>(low + j * kChunkTokens));
    if (kWidth == kV8) continue;
    const KvBlock& block = blocks.block[j];
    constexpr int kBits = kWidth == kV4 ? 4 : 2;
    zeros =
        MulAdd(ToFloat(units), LoadZeros<kBits, 1>(block.data + s->At(block.format).zero), zeros);
  }
  *total = sum;
  s->unit[i][kWidth] = largest * (1.0f / 16383.0f);
  s->zeros[i][kWidth] = kWidth == kV4 || kWidth == kV2 ? Sum(zeros) : 0.0f;
}

// Turns the scores of one query over a run into 14-bit probabilities. Returns false if the query
// sees nothing of the run.
inline bool SoftmaxRun(int run, AttentionScratch* s, int i, float* run_max, float* run_sum) {
  const Query& query = s->query[i];
  const int keys = KeysSeen(query, run);
  const int groups = (keys + kChunkTokens - 1) / kChunkTokens;
  for (uint8_t* half : s->halves[i]) {
    std::memset(half + groups * kChunkTokens, 0,
                static_cast<size_t>((kRunGroups - groups) * kChunkTokens));
  }
#ifdef WITHY_PAIR_SUMS
  for (int key = groups * kChunkTokens; key < kRunKeys; ++key) s->units[i][key] = 0;
#endif
  for (int w = 0; w < kVWidths; ++w) s->unit[i][w] = s->zeros[i][w] = 0.0f;
  if (groups == 0) return false;
  // Lanes of the last group beyond the row's keys may hold anything, even NaN.
  const I16 mask = LanesBelow(keys - (groups - 1) * kChunkTokens);
  const int hidden = KeysHidden(query, run);
  float* scores = s->scores[i];
  alignas(64) float v_scale[kRunKeys];
  F16 m = Splat(kLowest);
  F16 top[kVWidths] = {Zero(), Zero(), Zero(), Zero()};
  FindMaxima<kV8>(query, groups, mask, hidden, *s, scores, v_scale, &m, &top[kV8]);
  FindMaxima<kV4>(query, groups, mask, hidden, *s, scores, v_scale, &m, &top[kV4]);
  FindMaxima<kV2>(query, groups, mask, hidden, *s, scores, v_scale, &m, &top[kV2]);
  FindMaxima<kVHalf>(query, groups, mask, hidden, *s, scores, v_scale, &m, &top[kVHalf]);
  const F16 max = Splat(MaxLane(m));
  F16 total = Zero();
  const auto has = [&query](VWidth width) { return query.run->of_width[width].count > 0; };
  if (has(kV8)) FindUnits<kV8>(run, groups, max, MaxLane(top[kV8]), v_scale, s, i, &total);
  if (has(kV4)) FindUnits<kV4>(run, groups, max, MaxLane(top[kV4]), v_scale, s, i, &total);
  if (has(kV2)) FindUnits<kV2>(run, groups, max, MaxLane(top[kV2]), v_scale, s, i, &total);
  if (has(kVHalf)) FindUnits<kVHalf>(run, groups, max, 0.0f, v_scale, s, i, &total);
  *run_max = max.part[0][0];
  *run_sum = Sum(total);
  return true;
}

WITHY_INLINE float Exp1(float x) { return Exp(Splat(x)).part[0][0]; }

// Adds what query i found in a run.
inline void MergeRun(int head_dim, int run, float run_max, float run_sum, const float* run_out,
                     AttentionScratch* s, int i) {
  Query* query = &s->query[i];
  const float max = query->max > run_max ? query->max : run_max;
  const bool is_first = run == query->first_run;
  const float old_factor = is_first ? 0.0f : Exp1(query->max - max);
  const float new_factor = Exp1(run_max - max);
  if (s->density[i] != nullptr) {
    const int chunks = (query->visible + kChunkTokens - 1) / kChunkTokens;
    for (int c = 0; is_first && c < run * kRunGroups; ++c) s->density[i][c] = 0.0f;
    for (int c = 0; c < chunks && c < (run + 1) * kRunGroups; ++c) {
      s->density[i][c] *= c < run * kRunGroups ? old_factor : new_factor;
    }
  }
  query->max = max;
  query->sum = query->sum * old_factor + run_sum * new_factor;
  for (int d = 0; d < head_dim; d += 16) {
    Store(Load(query->out + d) * Splat(old_factor) + Load(run_out + d) * Splat(new_factor),
          query->out + d);
  }
}

}  // namespace withy::engine::WITHY_TARGET
