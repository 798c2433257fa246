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

// for init
__attribute__((noinline)) static void k0_init(stretto::Context* ctx, float* p0, float* p1, int64_t task)
{
  const int64_t g0 = task * 1;
  const int64_t e0 = g0 + 1 < int64_t(4) ? g0 + 1 : int64_t(4);
  {
    #pragma omp simd
    for (int64_t i0 = g0; i0 < e0; ++i0)
    {
      const float v0 = p0[i0];
      p1[i0] = v0;
    }
  }
}

// for sum
__attribute__((noinline)) static void k1_sum(stretto::Context* ctx, float* p0, float* p1, int64_t task)
{
  {
    double sum = 0.0f;
    for (int64_t chunk = 0; chunk < 4; chunk += 4096)
    {
      const int64_t stop = chunk + 4096 < 4 ? chunk + 4096 : 4;
      float total = 0.0f;
      #pragma omp simd reduction(+ : total)
      for (int64_t i0 = chunk; i0 < stop; ++i0)
      {
        const float v0 = p0[i0];
        total = total + v0;
      }
      sum = sum + total;
    }
    p1[0] = float(sum);
  }
}

// for add
__attribute__((noinline)) static void k2_add(stretto::Context* ctx, float* p0, float* p1, int64_t task)
{
  const int64_t g0 = task * 1;
  const int64_t e0 = g0 + 1 < int64_t(4) ? g0 + 1 : int64_t(4);
  {
    #pragma omp simd
    for (int64_t i0 = g0; i0 < e0; ++i0)
    {
      const float v0 = p0[i0];
      const float v1 = float(v0 + 1.0f);
      p1[i0] = v1;
    }
  }
}

// for push
__attribute__((noinline)) static void k3_push(stretto::Context* ctx, float* p0, float* p1, int64_t r0, int64_t task)
{
  const int64_t g0 = task * 1;
  const int64_t e0 = g0 + 1 < int64_t(4) ? g0 + 1 : int64_t(4);
  {
    #pragma omp simd
    for (int64_t i0 = g0; i0 < e0; ++i0)
    {
      const float v0 = p0[i0];
      p1[r0 * 4 + i0] = v0;
    }
  }
}

// for n
__attribute__((noinline)) static void k4_n(stretto::Context* ctx, int64_t* p0, int64_t r0, int64_t task)
{
  {
    p0[0] = int64_t(r0);
  }
}

static bool f0_main(State& s, char* frame, int64_t& result_0);
static bool f0_main(State& s, char* frame, int64_t& result_0)
{
  [[maybe_unused]] float* b0_in0 = (float*)(s.ctx->buffers[0]);
  [[maybe_unused]] float* b1_in1 = (float*)(s.ctx->buffers[1]);
  [[maybe_unused]] float* b_main_b_2 = (float*)(frame + 0);
  [[maybe_unused]] float* b_main_b_3 = (float*)(frame + 64);
  [[maybe_unused]] float* b3_main_list_1 = (float*)(s.ctx->buffers[3]);
  [[maybe_unused]] float* b_main_s_6 = (float*)(frame + 128);
  [[maybe_unused]] int64_t* b2_out1 = (int64_t*)(s.ctx->buffers[2]);
  [[maybe_unused]] int64_t r_main_length_4 = 0;
  [[maybe_unused]] int64_t r_main_length_7 = 0;
  [[maybe_unused]] bool r_main_while_5 = 0;
  switch (s.unit)
  {
    case 0:
    {
      for (int64_t task = 0; task < 2; ++task)
      {
        STRETTO_TASK(s.ctx, s.unit, 0, task)
        {
          k0_init(s.ctx, b0_in0, b_main_b_2, task);
        }
        if (!stretto::go_on(s.ctx, s.unit)) return false;
      }
      r_main_length_4 = int64_t(0);
      break;
    }
    case 1:
    {
      for (int64_t task = 2; task < 4; ++task)
      {
        STRETTO_TASK(s.ctx, s.unit, 0, task)
        {
          k0_init(s.ctx, b0_in0, b_main_b_2, task);
        }
        if (!stretto::go_on(s.ctx, s.unit)) return false;
      }
      r_main_length_4 = int64_t(0);
      break;
    }
  }
  s.base += 1;
  stretto::signal(s.ctx, s.unit, s.base);
  for (;;)
  {
    switch (s.unit)
    {
      case 0:
      {
        if (!stretto::wait(s.ctx, s.unit, 1, s.base + 0)) return false;
        for (int64_t task = 0; task < 1; ++task)
        {
          STRETTO_TASK(s.ctx, s.unit, 1, task)
          {
            k1_sum(s.ctx, b_main_b_2, b_main_s_6, task);
          }
          if (!stretto::go_on(s.ctx, s.unit)) return false;
        }
        stretto::signal(s.ctx, s.unit, s.base + 1);
        r_main_while_5 = bool(b_main_s_6[0] < b1_in1[0]);
        break;
      }
      case 1:
      {
        if (!stretto::wait(s.ctx, s.unit, 0, s.base + 1)) return false;
        r_main_while_5 = bool(b_main_s_6[0] < b1_in1[0]);
        break;
      }
    }
    s.base += 2;
    stretto::signal(s.ctx, s.unit, s.base);
    if (!r_main_while_5) break;
    STRETTO_DECIDED(s.ctx, s.unit, 0, 1)
    switch (s.unit)
    {
      case 0:
      {
        for (int64_t task = 0; task < 2; ++task)
        {
          STRETTO_TASK(s.ctx, s.unit, 2, task)
          {
            k2_add(s.ctx, b_main_b_2, b_main_b_3, task);
          }
          if (!stretto::go_on(s.ctx, s.unit)) return false;
        }
        if (!bool(int64_t(uint64_t(r_main_length_4) + 1) <= int64_t(s.ctx->limits[3]))) return stretto::fail(s.ctx, stretto::LIST_FULL, 3);
        for (int64_t task = 0; task < 2; ++task)
        {
          STRETTO_TASK(s.ctx, s.unit, 3, task)
          {
            k3_push(s.ctx, b_main_b_3, b3_main_list_1, r_main_length_4, task);
          }
          if (!stretto::go_on(s.ctx, s.unit)) return false;
        }
        r_main_length_4 = int64_t(uint64_t(r_main_length_4) + 1);
        break;
      }
      case 1:
      {
        for (int64_t task = 2; task < 4; ++task)
        {
          STRETTO_TASK(s.ctx, s.unit, 2, task)
          {
            k2_add(s.ctx, b_main_b_2, b_main_b_3, task);
          }
          if (!stretto::go_on(s.ctx, s.unit)) return false;
        }
        if (!bool(int64_t(uint64_t(r_main_length_4) + 1) <= int64_t(s.ctx->limits[3]))) return stretto::fail(s.ctx, stretto::LIST_FULL, 3);
        for (int64_t task = 2; task < 4; ++task)
        {
          STRETTO_TASK(s.ctx, s.unit, 3, task)
          {
            k3_push(s.ctx, b_main_b_3, b3_main_list_1, r_main_length_4, task);
          }
          if (!stretto::go_on(s.ctx, s.unit)) return false;
        }
        r_main_length_4 = int64_t(uint64_t(r_main_length_4) + 1);
        break;
      }
    }
    s.base += 1;
    stretto::signal(s.ctx, s.unit, s.base);
    stretto::swap(b_main_b_2, b_main_b_3);
    if (!stretto::back_edge(s.ctx, s.unit, s.edges)) return false;
  }
  STRETTO_DECIDED(s.ctx, s.unit, 0, 0)
  switch (s.unit)
  {
    case 0:
    {
      for (int64_t task = 0; task < 1; ++task)
      {
        STRETTO_TASK(s.ctx, s.unit, 4, task)
        {
          k4_n(s.ctx, b2_out1, r_main_length_4, task);
        }
        if (!stretto::go_on(s.ctx, s.unit)) return false;
      }
      r_main_length_7 = int64_t(r_main_length_4);
      break;
    }
    case 1:
    {
      r_main_length_7 = int64_t(r_main_length_4);
      break;
    }
  }
  s.base += 1;
  stretto::signal(s.ctx, s.unit, s.base);
  result_0 = r_main_length_7;
  return true;
}
extern "C" void stretto_run(stretto::Context* ctx, int unit)
{
  State s{ctx, unit, 0, 0, 0};
  if (!stretto::arena_left(ctx, 192)) return;
  int64_t result_0 = 0;
  if (!f0_main(s, ctx->arena, result_0)) return;
  if (unit == 0)
  {
    ctx->results[0] = int64_t(result_0);
  }
}
