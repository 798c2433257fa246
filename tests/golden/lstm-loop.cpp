#include "contract.h"
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

// for init and 2 more
__attribute__((noinline)) static void k0_init(stretto::Context* ctx, float* p0, float* p1, int64_t task)
{
  const int64_t g0 = task * 16;
  const int64_t e0 = g0 + 16 < int64_t(64) ? g0 + 16 : int64_t(64);
  {
    for (int64_t i0 = 0; i0 < 1; ++i0)
    {
      #pragma omp simd
      for (int64_t i1 = g0; i1 < e0; ++i1)
      {
        const float v0 = p0[i1];
        p1[i1] = v0;
      }
    }
  }
}

// for linear
__attribute__((noinline)) static void k1_linear(stretto::Context* ctx, float* p0, float* p1, float* p2, int64_t task)
{
  const int64_t g0 = task * 64;
  const int64_t e0 = g0 + 64 < int64_t(256) ? g0 + 64 : int64_t(256);
  {
    stretto::contract_packed_many<float, 1, 64>(p0, 0, 1, p2 + g0 * 64, p1 + g0 * 1, 0, 1, 64, int(e0 - g0), false);
  }
}

// for add
__attribute__((noinline)) static void k2_add(stretto::Context* ctx, float* p0, float* p1, float* p2, float* p3, float* p4, int64_t r0, int64_t task)
{
  const int64_t g0 = task * 16;
  const int64_t e0 = g0 + 16 < int64_t(64) ? g0 + 16 : int64_t(64);
  {
    for (int64_t i0 = 0; i0 < 1; ++i0)
    {
      #pragma omp simd
      for (int64_t i1 = g0; i1 < e0; ++i1)
      {
        const float v0 = p0[r0 * 256 + i1 + 64];
        const float v1 = p1[i1 + 64];
        const float v2 = float(v0 + v1);
        const float v3 = stretto::sigmoid(v2);
        const float v4 = p2[i1];
        const float v5 = float(v3 * v4);
        const float v6 = p0[r0 * 256 + i1];
        const float v7 = p1[i1];
        const float v8 = float(v6 + v7);
        const float v9 = stretto::sigmoid(v8);
        const float v10 = p0[r0 * 256 + i1 + 128];
        const float v11 = p1[i1 + 128];
        const float v12 = float(v10 + v11);
        const float v13 = stretto::tanh(v12);
        const float v14 = float(v9 * v13);
        const float v15 = float(v5 + v14);
        p3[i1] = v15;
      }
    }
  }
  {
    for (int64_t i0 = 0; i0 < 1; ++i0)
    {
      #pragma omp simd
      for (int64_t i1 = g0; i1 < e0; ++i1)
      {
        const float v0 = p0[r0 * 256 + i1 + 192];
        const float v1 = p1[i1 + 192];
        const float v2 = float(v0 + v1);
        const float v3 = stretto::sigmoid(v2);
        const float v4 = p3[i1];
        const float v5 = stretto::tanh(v4);
        const float v6 = float(v3 * v5);
        p4[i1] = v6;
      }
    }
  }
}

static bool f0_main(State& s, char* frame);
static bool f0_main(State& s, char* frame)
{
  [[maybe_unused]] float* b0_in0 = (float*)(s.ctx->buffers[0]);
  [[maybe_unused]] float* b1_in1 = (float*)(s.ctx->buffers[1]);
  [[maybe_unused]] float* b2_in2 = (float*)(s.ctx->buffers[2]);
  [[maybe_unused]] float* b_main_c1_3 = (float*)(frame + 1536);
  [[maybe_unused]] float* b_main_c1_4 = (float*)(frame + 1792);
  [[maybe_unused]] float* b_main_h1_1 = (float*)(frame + 1024);
  [[maybe_unused]] float* b_main_h1_2 = (float*)(frame + 1280);
  [[maybe_unused]] float* b_main_of_h_6 = (float*)(frame + 0);
  [[maybe_unused]] float* b3_out0 = (float*)(s.ctx->buffers[3]);
  [[maybe_unused]] float* b5_w_packed0 = (float*)(s.ctx->buffers[4]);
  [[maybe_unused]] int64_t r_main_i_5 = 0;
  switch (s.unit)
  {
    case 0:
    {
      for (int64_t task = 0; task < 2; ++task)
      {
        STRETTO_TASK(s.ctx, s.unit, 0, task)
        {
          k0_init(s.ctx, b1_in1, b_main_h1_1, task);
        }
        if (!stretto::go_on(s.ctx, s.unit)) return false;
      }
      for (int64_t task = 0; task < 2; ++task)
      {
        STRETTO_TASK(s.ctx, s.unit, 1, task)
        {
          k0_init(s.ctx, b2_in2, b_main_c1_3, task);
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
          k0_init(s.ctx, b1_in1, b_main_h1_1, task);
        }
        if (!stretto::go_on(s.ctx, s.unit)) return false;
      }
      for (int64_t task = 2; task < 4; ++task)
      {
        STRETTO_TASK(s.ctx, s.unit, 1, task)
        {
          k0_init(s.ctx, b2_in2, b_main_c1_3, task);
        }
        if (!stretto::go_on(s.ctx, s.unit)) return false;
      }
      break;
    }
  }
  s.base += 1;
  stretto::signal(s.ctx, s.unit, s.base);
  int64_t at1 = int64_t(0);
  int64_t stop2 = int64_t(8);
  while (at1 < stop2)
  {
    STRETTO_DECIDED(s.ctx, s.unit, 0, 1)
    r_main_i_5 = at1;
    switch (s.unit)
    {
      case 0:
      {
        if (!stretto::wait(s.ctx, s.unit, 1, s.base + 0)) return false;
        for (int64_t task = 0; task < 2; ++task)
        {
          STRETTO_TASK(s.ctx, s.unit, 2, task)
          {
            k1_linear(s.ctx, b_main_h1_1, b_main_of_h_6, b5_w_packed0, task);
          }
          if (!stretto::go_on(s.ctx, s.unit)) return false;
        }
        stretto::signal(s.ctx, s.unit, s.base + 1);
        if (!stretto::wait(s.ctx, s.unit, 1, s.base + 1)) return false;
        for (int64_t task = 0; task < 2; ++task)
        {
          STRETTO_TASK(s.ctx, s.unit, 3, task)
          {
            k2_add(s.ctx, b0_in0, b_main_of_h_6, b_main_c1_3, b_main_c1_4, b_main_h1_2, r_main_i_5, task);
          }
          if (!stretto::go_on(s.ctx, s.unit)) return false;
        }
        break;
      }
      case 1:
      {
        if (!stretto::wait(s.ctx, s.unit, 0, s.base + 0)) return false;
        for (int64_t task = 2; task < 4; ++task)
        {
          STRETTO_TASK(s.ctx, s.unit, 2, task)
          {
            k1_linear(s.ctx, b_main_h1_1, b_main_of_h_6, b5_w_packed0, task);
          }
          if (!stretto::go_on(s.ctx, s.unit)) return false;
        }
        stretto::signal(s.ctx, s.unit, s.base + 1);
        if (!stretto::wait(s.ctx, s.unit, 0, s.base + 1)) return false;
        for (int64_t task = 2; task < 4; ++task)
        {
          STRETTO_TASK(s.ctx, s.unit, 3, task)
          {
            k2_add(s.ctx, b0_in0, b_main_of_h_6, b_main_c1_3, b_main_c1_4, b_main_h1_2, r_main_i_5, task);
          }
          if (!stretto::go_on(s.ctx, s.unit)) return false;
        }
        break;
      }
    }
    s.base += 2;
    stretto::signal(s.ctx, s.unit, s.base);
    stretto::swap(b_main_h1_1, b_main_h1_2);
    stretto::swap(b_main_c1_3, b_main_c1_4);
    if (!stretto::back_edge(s.ctx, s.unit, s.edges)) return false;
    at1 += 1;
  }
  STRETTO_DECIDED(s.ctx, s.unit, 0, 0)
  switch (s.unit)
  {
    case 0:
    {
      for (int64_t task = 0; task < 2; ++task)
      {
        STRETTO_TASK(s.ctx, s.unit, 4, task)
        {
          k0_init(s.ctx, b_main_h1_1, b3_out0, task);
        }
        if (!stretto::go_on(s.ctx, s.unit)) return false;
      }
      break;
    }
    case 1:
    {
      for (int64_t task = 2; task < 4; ++task)
      {
        STRETTO_TASK(s.ctx, s.unit, 4, task)
        {
          k0_init(s.ctx, b_main_h1_1, b3_out0, task);
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
  if (!stretto::arena_left(ctx, 2048)) return;
  if (!f0_main(s, ctx->arena)) return;
}
