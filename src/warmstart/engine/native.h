// What programs in C++ share, those that native.py writes above all. `real` is float or double.
#include <cmath>
#include <cstdlib>
#include <cstring>

#if defined(__AVX512F__)
#define BYTES 64
#elif defined(__AVX__)
#define BYTES 32
#else
#define BYTES 16
#endif
typedef real vec __attribute__((vector_size(BYTES)));
constexpr int W = BYTES / sizeof(real);

#if defined(__GLIBC__) && defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define SIMD __attribute__((simd("notinbranch")))  // glibc has them for whole vectors
#else
#define SIMD
#endif
extern "C" SIMD float expf(float) noexcept;
extern "C" SIMD double exp(double) noexcept;
extern "C" SIMD float logf(float) noexcept;
extern "C" SIMD double log(double) noexcept;

struct Work {
  char* data;
  explicit Work(size_t size) : data((char*)std::aligned_alloc(64, size + 64)) {}
  ~Work() { std::free(data); }
};

namespace program {  // so that its names come before those of the standard library
inline real exp(real x) {
  if constexpr (sizeof(real) == 4) return ::expf(x);
  else return ::exp(x);
}
inline real log(real x) {
  if constexpr (sizeof(real) == 4) return ::logf(x);
  else return ::log(x);
}
using std::abs, std::cos, std::erf, std::sqrt;
template <class C> inline real where(C c, real a, real b) { return c ? a : b; }
inline real least(real x, real limit) { return x > limit ? limit : x; }
inline real nan_to_num(real x, real nan, real above, real below) {
  return x != x ? nan : x == real(INFINITY) ? above : x == -real(INFINITY) ? below : x;
}
// accurate near zero because the rounding of 1 + x cancels out in the ratio
inline real log1p(real x) {
  const real u = 1 + x;
  return u == 1 ? x : log(u) * (x / (u - 1));
}
inline real expm1(real x) {
  const real u = exp(x);
  return u == 1 ? x : (u - 1) * (x / log(u));
}
inline real tanh(real x) {
  const real size = abs(x), e = expm1(-2 * (size > 20 ? real(20) : size));
  return (x < 0 ? e : -e) / (2 + e);
}
inline real sigmoid(real x) { return 1 / (1 + exp(-x)); }
inline real normal_cdf(real x) { return real(0.5) * (1 + erf(x * real(0.7071067811865476))); }
inline real normal_pdf(real x) { return exp(real(-0.5) * x * x) * real(0.3989422804014327); }

// R rows of a matrix product by C vectors, of which N numbers count; the right matrix lies in rows of P
template <int R, int C, int N, int K, int A0, int A1, int C0, int C1, int P>
inline void tile(const real* a, const real* p, real* c) {
  vec sum[R][C] = {};
  for (int k = 0; k < K; k++)
#pragma GCC unroll 8
    for (int j = 0; j < C; j++) {
      const vec b = *(const vec*)(p + k * P + j * W);
#pragma GCC unroll 8
      for (int r = 0; r < R; r++) sum[r][j] += a[r * A0 + k * A1] * b;
    }
#pragma GCC unroll 8
  for (int r = 0; r < R; r++) {
    real row[C * W];
    std::memcpy(row, sum[r], sizeof row);
    if constexpr (C1 == 1) std::memcpy(c + r * C0, row, N * sizeof(real));
    else for (int n = 0; n < N; n++) c[r * C0 + n * C1] = row[n];
  }
}

template <int C, int M, int N, int K, int A0, int A1, int C0, int C1, int P>
inline void rows(const real* a, const real* p, real* c) {
  constexpr int R = C > 2 ? 4 : 8;
  for (int m = 0; m + R <= M; m += R) tile<R, C, N, K, A0, A1, C0, C1, P>(a + m * A0, p, c + m * C0);
  if constexpr (M % R)
    tile<M % R, C, N, K, A0, A1, C0, C1, P>(a + M / R * R * A0, p, c + M / R * R * C0);
}

// c = a b for matrices of M by K and K by N, each with the strides of its two axes
template <int M, int N, int K, int A0, int A1, int B0, int B1, int C0, int C1>
static void product(const real* a, const real* b, real* c) {
  constexpr int VECTORS = (N + W - 1) / W, P = VECTORS * W, BLOCK = 4;
  if constexpr ((M == 1 || N == 1) && A1 == 1 && B0 == 1) {  // inner products, all of what lies in a row
    for (int m = 0; m < M; m++)
      for (int n = 0; n < N; n++) {
        real sum = 0;
        for (int k = 0; k < K; k++) sum += a[m * A0 + k] * b[k + n * B1];
        c[m * C0 + n * C1] = sum;
      }
  } else if constexpr (N * ((M + W - 1) / W) < M * VECTORS) {  // the transpose needs less
    product<N, M, K, B1, B0, A1, A0, C1, C0>(b, a, c);
  } else {
    alignas(64) real p[K * P];
    for (int k = 0; k < K; k++) {
      for (int n = 0; n < N; n++) p[k * P + n] = b[k * B0 + n * B1];
      for (int n = N; n < P; n++) p[k * P + n] = 0;
    }
    constexpr int WIDE = BLOCK * W, TAIL = N - VECTORS / BLOCK * WIDE;
    constexpr int WHOLE = TAIL < 0 ? VECTORS / BLOCK - 1 : VECTORS / BLOCK;  // blocks without padding
    for (int j = 0; j < WHOLE; j++) rows<BLOCK, M, WIDE, K, A0, A1, C0, C1, P>(a, p + j * WIDE, c + j * WIDE * C1);
    constexpr int DONE = WHOLE * WIDE, REST = VECTORS - WHOLE * BLOCK;
    if constexpr (REST > 0) rows<REST, M, N - DONE, K, A0, A1, C0, C1, P>(a, p + DONE, c + DONE * C1);
  }
}
}  // namespace program
