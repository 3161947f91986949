// The memory of memory.py on a CPU: a look at the neighbours, and writing down.
#include "native.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <utility>
#include <vector>

namespace {

typedef const real* __restrict in;
typedef real* __restrict out;
constexpr int AT_ONCE = BYTES == 64 ? 8 : 4;  // entries whose products are taken together
constexpr int WIDE = 2 * W;                   // with so many queries
constexpr int64_t EMPTY = -1;                 // the key of no user
constexpr int PARTS = 3, TOLD = 1 + 2 * PARTS;  // of a key, and what comes of a user before the entry

// Scores as whole numbers of the same order, which have a maximum in one go, and back. What is no number is the least.
typedef decltype(vec{} < vec{}) ranks;
typedef std::remove_reference_t<decltype(ranks{}[0])> rank;
inline ranks turned(ranks bits) { return bits ^ (bits >> (8 * sizeof(real) - 1) & std::numeric_limits<rank>::max()); }
inline ranks none() { return turned((ranks)(vec{} - INFINITY)); }
inline ranks ranked(vec x) { return x == x ? turned((ranks)x) : none(); }

template <class Mask>
inline bool any(Mask mask) {
  bool found = false;
  for (int j = 0; j < W; j++) found |= mask[j] != 0;
  return found;
}

// The largest scores that each of a group of queries has met, descending, and the rows of scores they may be in.
struct Best {
  size_t count;
  std::vector<ranks> top;  // [count][2]
  vec least[2];            // what a score must exceed
  std::vector<ranks> scores{};
  std::vector<int64_t> places{};

  explicit Best(size_t count) : count(count), top(2 * count, none()) {
    least[0] = least[1] = vec{} - INFINITY;
  }

  void add(vec one, vec two, int64_t place) {
    if (!any(one > least[0] | two > least[1])) return;
    ranks a = ranked(one), b = ranked(two);
    places.push_back(place);
    scores.insert(scores.end(), {a, b});
    for (size_t k = 0; k < count; k++) {
      const ranks x = top[2 * k], y = top[2 * k + 1];
      top[2 * k] = a > x ? a : x;
      top[2 * k + 1] = b > y ? b : y;
      a = a > x ? x : a;
      b = b > y ? y : b;
    }
    if (places.size() < count) return;
    least[0] = (vec)turned(top[2 * count - 2]);
    least[1] = (vec)turned(top[2 * count - 1]);
  }

  // of each query, nearest first; more than `count` where some are equal
  std::vector<std::vector<std::pair<rank, int64_t>>> found() const {
    const ranks* last = &top[2 * count - 2];
    std::vector<std::vector<std::pair<rank, int64_t>>> all(WIDE);
    for (size_t i = 0; i < places.size(); i++) {
      if (!any(scores[2 * i] >= last[0] | scores[2 * i + 1] >= last[1])) continue;
      for (int j = 0; j < WIDE; j++) {
        const rank score = scores[2 * i + j / W][j % W];
        if (score >= last[j / W][j % W]) all[j].emplace_back(~score, places[i]);
      }
    }
    for (auto& mine : all) std::sort(mine.begin(), mine.end());
    return all;
  }
};

// q.v - |v|^2 / 2 of R entries with a group of queries, whose numbers lie side by side
template <int R>
void meet(const real* entry, int64_t width, int64_t first, const vec* asked, Best& best) {
  constexpr int LINE = 64 / sizeof(real);
  for (int64_t k = 0; k < R * width; k += LINE) __builtin_prefetch(entry + 2 * R * width + k);
  vec sum[R][2] = {};
  for (int64_t k = 0; k < width - 2; k++)
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) {
      sum[r][0] += entry[r * width + k] * asked[2 * k];
      sum[r][1] += entry[r * width + k] * asked[2 * k + 1];
    }
  for (int r = 0; r < R; r++) {
    const real half = entry[r * width + width - 1] / 2;
    best.add(sum[r][0] - half, sum[r][1] - half, first + r);
  }
}

void search(const real* entry, int64_t entries, int64_t width, const real* query, int queries, Best& best) {
  const int64_t d = width - 2;
  std::vector<vec> asked(2 * d);
  for (int64_t k = 0; k < d; k++)
    for (int j = 0; j < queries; j++) ((real*)asked.data())[k * WIDE + j] = query[j * d + k];
  int64_t i = 0;
  for (; i + AT_ONCE <= entries; i += AT_ONCE) meet<AT_ONCE>(entry + i * width, width, i, asked.data(), best);
  for (; i < entries; i++) meet<1>(entry + i * width, width, i, asked.data(), best);
}

real square(const real* vector, int64_t d) {
  real sum = 0;
  for (int64_t k = 0; k < d; k++) sum += vector[k] * vector[k];
  return sum;
}

}  // namespace

// place, kept [queries, count]; mean [queries]; by_query [queries, d]; by_entry [queries, count, d + 1]
extern "C" void look(in entry, const int64_t* key, int64_t entries, int64_t width, in query, const int64_t* own,
                     int64_t queries, int64_t count, int64_t wanted, double sharpness, double floor, int64_t* place,
                     out kept, out mean, out by_query, out by_entry) {
  const int64_t d = width - 2;
  std::vector<real> share(count);
  for (int64_t begin = 0; begin < queries; begin += WIDE) {
    const int group = std::min<int64_t>(WIDE, queries - begin);
    Best best(count);
    search(entry, entries, width, query + begin * d, group, best);
    auto nearest = best.found();
    for (int64_t t = begin; t < begin + group; t++) {
      auto& met = nearest[t - begin];
      const int64_t found = met.size();  // fewer where scores are no numbers
      met.resize(count);
      in q = query + t * d;
      int64_t real_ones = 0;
      real total = floor, sum = 0;
      for (int64_t k = 0; k < count; k++) {
        const int64_t i = place[t * count + k] = met[k].second;
        const bool counts = k < found && key[i] != EMPTY && key[i] != own[t] && real_ones < wanted;
        real_ones += counts;
        kept[t * count + k] = counts;
        real apart = 0;
        for (int64_t j = 0; j < d; j++) apart += (q[j] - entry[i * width + j]) * (q[j] - entry[i * width + j]);
        share[k] = counts ? std::exp(real(-sharpness) * apart) : 0;
        total += share[k];
        if (counts) sum += share[k] * entry[i * width + d];
      }
      mean[t] = sum / total;
      std::fill_n(by_query + t * d, d, real(0));
      for (int64_t k = 0; k < count; k++) {
        in v = entry + place[t * count + k] * width;
        out slope = by_entry + (t * count + k) * (d + 1);
        if (!kept[t * count + k]) {
          std::fill_n(slope, d + 1, real(0));
          continue;
        }
        const real by_value = share[k] / total, factor = real(2 * sharpness) * by_value * (v[d] - mean[t]);
        for (int64_t j = 0; j < d; j++) {
          slope[j] = factor * (q[j] - v[j]);
          by_query[t * d + j] -= slope[j];
        }
        slope[d] = by_value;
      }
    }
  }
}

// home [many]; come [many, TOLD + d + 1]
extern "C" void post(const int64_t* key, in vector, in value, int64_t many, int64_t d, int64_t sets, int64_t* home,
                     out come) {
  for (int64_t i = 0; i < many; i++) {
    out row = come + i * (TOLD + d + 1);
    home[i] = (key[i] % sets + sets) % sets;
    const int64_t quotient = (key[i] - home[i]) / sets;
    const int64_t parts[PARTS] = {quotient & 1023, quotient >> 10 & 1023, quotient >> 20};
    row[0] = 1;
    for (int k = 0; k < PARTS; k++) {
      row[1 + k] = parts[k];
      row[1 + PARTS + k] = row[1 + k] * row[1 + k];
    }
    std::memcpy(row + TOLD, vector + i * d, d * sizeof(real));
    row[TOLD + d] = value[i];
  }
}

// new_key, new_entry and new_used: entries descend, then users are written who came alone to their set
extern "C" void remember(const int64_t* key, in entry, in used, int64_t entries, int64_t width, int64_t sets,
                         const int64_t* home, in come, int64_t many, const int64_t* where, in by, int64_t moves,
                         in rate, in now, int64_t* new_key, out new_entry, out new_used) {
  const int64_t d = width - 2, ways = entries / sets, posted = TOLD + d + 1;
  std::memcpy(new_key, key, entries * sizeof(int64_t));
  std::memcpy(new_entry, entry, entries * width * sizeof(real));
  std::memcpy(new_used, used, entries * sizeof(real));
  const real step = *rate;
  for (int64_t i = 0; i < moves; i++) {
    in move = by + i * width;
    out row = new_entry + where[i] * width;
    for (int64_t k = 0; k <= d; k++) row[k] -= step * move[k];
    if (move[d + 1] > 0) new_used[where[i]] = std::max(new_used[where[i]], *now);
  }
  for (int64_t i = 0; i < moves; i++) {
    out row = new_entry + where[i] * width;
    if (key[where[i]] != EMPTY) row[d + 1] = square(row, d);
  }
  std::vector<double> sum(TOLD * sets);
  for (int64_t i = 0; i < many; i++)
    for (int k = 0; k < TOLD; k++) sum[TOLD * home[i] + k] += come[i * posted + k];
  for (int64_t i = 0; i < many; i++) {
    const double *total = &sum[TOLD * home[i]], number = std::max(total[0], 1.0);
    bool alone = true;
    int64_t quotient = 0;
    for (int k = 1; k <= PARTS; k++) {
      alone &= total[0] * (total[PARTS + k] - 0.5) < total[k] * total[k];
      quotient += int64_t(total[k] / number) * (int64_t(1) << 10 * (k - 1));
    }
    if (!alone) continue;  // nobody, or several
    const int64_t own = quotient * sets + home[i], left = home[i] * ways, right = left + ways;
    if (own == EMPTY) continue;
    int64_t place = std::find(new_key + left, new_key + right, own) - new_key;
    if (place == right) place = std::min_element(new_used + left, new_used + right) - new_used;
    const real* fresh = come + i * posted;
    real* row = new_entry + place * width;
    for (int64_t k = 0; k <= d; k++) row[k] = fresh[TOLD + k] / std::max(fresh[0], real(1));
    row[d + 1] = square(row, d);
    new_key[place] = own;
    new_used[place] = std::max(new_used[place], *now);
  }
}
