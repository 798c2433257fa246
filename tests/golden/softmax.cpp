#include "abi.h"
#include "math.h"
#include "program.h"

struct State {
  stretto::Context* ctx;
  int unit;
  int64_t base;
  uint32_t edges;
  int64_t depth;
};

// for exp
__attribute__((noinline)) static void k0_exp(stretto::Context* ctx, float* p0, float* p1, float* p2, int64_t task)
{
  const int64_t g0 = task * 16;
  const int64_t e0 = g0 + 16 < int64_t(64) ? g0 + 16 : int64_t(64);
  {
    for (int64_t i0 = g0; i0 < e0; ++i0)
    {
      #pragma omp simd
      for (int64_t i1 = 0; i1 < 48; ++i1)
      {
        const float v0 = p0[i0 * 48 + i1];
        const float v1 = stretto::exp(v0);
        p1[i0 * 48 + i1] = v1;
      }
    }
  }
  {
    for (int64_t i0 = g0; i0 < e0; ++i0)
    {
      float sum = -stretto::Limits<float>::infinity();
      for (int64_t chunk = 0; chunk < 48; chunk += 4096)
      {
        const int64_t stop = chunk + 4096 < 48 ? chunk + 4096 : 48;
        float total = -stretto::Limits<float>::infinity();
        #pragma omp simd reduction(stretto::nan_max : total)
        for (int64_t i1 = chunk; i1 < stop; ++i1)
        {
          const float v0 = p1[i0 * 48 + i1];
          total = stretto::maximum(total, v0);
        }
        sum = stretto::maximum(sum, total);
      }
      p2[i0] = float(sum);
    }
  }
}

// for softmax
__attribute__((noinline)) static void k1_softmax(stretto::Context* ctx, float* p0, float* p1, float* p2, float* p3, int64_t task)
{
  const int64_t g0 = task * 16;
  const int64_t e0 = g0 + 16 < int64_t(64) ? g0 + 16 : int64_t(64);
  {
    for (int64_t i0 = g0; i0 < e0; ++i0)
    {
      double sum = 0.0f;
      for (int64_t chunk = 0; chunk < 48; chunk += 4096)
      {
        const int64_t stop = chunk + 4096 < 48 ? chunk + 4096 : 48;
        float total = 0.0f;
        #pragma omp simd reduction(+ : total)
        for (int64_t i1 = chunk; i1 < stop; ++i1)
        {
          const float v0 = p0[i0 * 48 + i1];
          const float v1 = p1[i0];
          const float v2 = float(v0 - v1);
          const bool v3 = bool(v2 < -87.0f);
          const float v4 = (v3 ? 0.0f : stretto::exp(stretto::maximum(v2, -87.0f)));
          total = total + v4;
        }
        sum = sum + total;
      }
      p2[i0] = float(sum);
    }
  }
  {
    for (int64_t i0 = g0; i0 < e0; ++i0)
    {
      #pragma omp simd
      for (int64_t i1 = 0; i1 < 48; ++i1)
      {
        const float v0 = p0[i0 * 48 + i1];
        const float v1 = p1[i0];
        const float v2 = float(v0 - v1);
        const bool v3 = bool(v2 < -87.0f);
        const float v4 = (v3 ? 0.0f : stretto::exp(stretto::maximum(v2, -87.0f)));
        const float v5 = p2[i0];
        const float v6 = float(v4 / v5);
        p3[i0 * 48 + i1] = v6;
      }
    }
  }
}

static bool f0_main(State& s, char* frame);
static bool f0_main(State& s, char* frame)
{
  [[maybe_unused]] float* b0_in0 = (float*)(s.ctx->buffers[0]);
  [[maybe_unused]] float* b_main_e_1 = (float*)(frame + 0);
  [[maybe_unused]] float* b_main_max_2 = (float*)(frame + 12288);
  [[maybe_unused]] float* b_main_sum_3 = (float*)(frame + 12544);
  [[maybe_unused]] float* b1_out0 = (float*)(s.ctx->buffers[1]);
  switch (s.unit)
  {
    case 0:
    {
      for (int64_t task = 0; task < 2; ++task)
      {
        STRETTO_TASK(s.ctx, s.unit, 0, task)
        {
          k0_exp(s.ctx, b0_in0, b_main_e_1, b_main_max_2, task);
        }
        if (!stretto::go_on(s.ctx, s.unit)) return false;
      }
      for (int64_t task = 0; task < 2; ++task)
      {
        STRETTO_TASK(s.ctx, s.unit, 1, task)
        {
          k1_softmax(s.ctx, b_main_e_1, b_main_max_2, b_main_sum_3, b1_out0, task);
        }
        if (!stretto::go_on(s.ctx, s.unit)) return false;
      }
      break;
    }
    case 1:
    {
      for (int64_t task = 2; task < 4; ++task)
      {
        STRETTO_TASK(s.ctx, s.unit, 0, task)
        {
          k0_exp(s.ctx, b0_in0, b_main_e_1, b_main_max_2, task);
        }
        if (!stretto::go_on(s.ctx, s.unit)) return false;
      }
      for (int64_t task = 2; task < 4; ++task)
      {
        STRETTO_TASK(s.ctx, s.unit, 1, task)
        {
          k1_softmax(s.ctx, b_main_e_1, b_main_max_2, b_main_sum_3, b1_out0, task);
        }
        if (!stretto::go_on(s.ctx, s.unit)) return false;
      }
      break;
    }
  }
  s.base += 1;
  stretto::signal(s.ctx, s.unit, s.base);
  return true;
}
extern "C" void stretto_run(stretto::Context* ctx, int unit)
{
  State s{ctx, unit, 0, 0, 0};
  if (!stretto::arena_left(ctx, 12800)) return;
  if (!f0_main(s, ctx->arena)) return;
}
