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

// for mul
__attribute__((noinline)) static void k0_mul(stretto::Context* ctx, float* p0, float* p1, int64_t task)
{
  const int64_t g0 = task * 1;
  const int64_t e0 = g0 + 1 < int64_t(4) ? g0 + 1 : int64_t(4);
  {
    #pragma omp simd
    for (int64_t i0 = g0; i0 < e0; ++i0)
    {
      const float v0 = p0[i0];
      const float v1 = float(v0 * 0.5f);
      p1[i0] = v1;
    }
  }
}

// for add
__attribute__((noinline)) static void k1_add(stretto::Context* ctx, float* p0, float* p1, float* p2, int64_t task)
{
  const int64_t g0 = task * 1;
  const int64_t e0 = g0 + 1 < int64_t(4) ? g0 + 1 : int64_t(4);
  {
    #pragma omp simd
    for (int64_t i0 = g0; i0 < e0; ++i0)
    {
      const float v0 = p0[i0];
      const float v1 = p1[i0];
      const float v2 = float(v0 + v1);
      p2[i0] = v2;
    }
  }
}

// for x
__attribute__((noinline)) static void k2_x(stretto::Context* ctx, float* p0, float* p1, int64_t task)
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

static bool f0_main(State& s, char* frame);
static bool f1_tree(State& s, char* frame, int64_t r_tree_arg1, float* b_tree_in0, float* b_tree_out0);
static bool f0_main(State& s, char* frame)
{
  [[maybe_unused]] float* b0_in0 = (float*)(s.ctx->buffers[0]);
  [[maybe_unused]] int64_t* b1_in1 = (int64_t*)(s.ctx->buffers[1]);
  [[maybe_unused]] float* b2_out0 = (float*)(s.ctx->buffers[2]);
  [[maybe_unused]] int64_t r_main_n_1 = 0;
  r_main_n_1 = b1_in1[0];
  s.base += 1;
  stretto::signal(s.ctx, s.unit, s.base);
  if (!f1_tree(s, frame + 0, int64_t(r_main_n_1), b0_in0, b2_out0)) return false;
  return true;
}
static bool f1_tree(State& s, char* frame, int64_t r_tree_arg1, float* b_tree_in0, float* b_tree_out0)
{
  if (!stretto::depth_left(s.ctx, s.unit, ++s.depth)) return false;
  if (!stretto::arena_left(s.ctx, frame - s.ctx->arena + 128)) return false;
  if (!stretto::back_edge(s.ctx, s.unit, s.edges)) return false;
  [[maybe_unused]] float* b_tree_a_3 = (float*)(frame + 64);
  [[maybe_unused]] float* b_tree_b_4 = (float*)(frame + 0);
  [[maybe_unused]] float* b_tree_half_2 = (float*)(frame + 0);
  [[maybe_unused]] bool r_tree_if_1 = 0;
  r_tree_if_1 = bool(int64_t(r_tree_arg1) > int64_t(0));
  s.base += 1;
  stretto::signal(s.ctx, s.unit, s.base);
  if (r_tree_if_1)
  {
    STRETTO_DECIDED(s.ctx, s.unit, 0, 0)
    switch (s.unit)
    {
      case 0:
      {
        for (int64_t task = 0; task < 2; ++task)
        {
          STRETTO_TASK(s.ctx, s.unit, 0, task)
          {
            k0_mul(s.ctx, b_tree_in0, b_tree_half_2, task);
          }
          if (!stretto::go_on(s.ctx, s.unit)) return false;
        }
        stretto::signal(s.ctx, s.unit, s.base + 1);
        if (!stretto::wait(s.ctx, s.unit, 1, s.base + 1)) return false;
        break;
      }
      case 1:
      {
        for (int64_t task = 2; task < 4; ++task)
        {
          STRETTO_TASK(s.ctx, s.unit, 0, task)
          {
            k0_mul(s.ctx, b_tree_in0, b_tree_half_2, task);
          }
          if (!stretto::go_on(s.ctx, s.unit)) return false;
        }
        stretto::signal(s.ctx, s.unit, s.base + 1);
        if (!stretto::wait(s.ctx, s.unit, 0, s.base + 1)) return false;
        break;
      }
    }
    s.base += 2;
    stretto::signal(s.ctx, s.unit, s.base);
    if (!f1_tree(s, frame + 128, int64_t(uint64_t(r_tree_arg1) + -1), b_tree_half_2, b_tree_a_3)) return false;
    if (!f1_tree(s, frame + 128, int64_t(uint64_t(r_tree_arg1) + -1), b_tree_a_3, b_tree_b_4)) return false;
    switch (s.unit)
    {
      case 0:
      {
        for (int64_t task = 0; task < 2; ++task)
        {
          STRETTO_TASK(s.ctx, s.unit, 1, task)
          {
            k1_add(s.ctx, b_tree_a_3, b_tree_b_4, b_tree_out0, task);
          }
          if (!stretto::go_on(s.ctx, s.unit)) return false;
        }
        stretto::signal(s.ctx, s.unit, s.base + 1);
        if (!stretto::wait(s.ctx, s.unit, 1, s.base + 1)) return false;
        break;
      }
      case 1:
      {
        for (int64_t task = 2; task < 4; ++task)
        {
          STRETTO_TASK(s.ctx, s.unit, 1, task)
          {
            k1_add(s.ctx, b_tree_a_3, b_tree_b_4, b_tree_out0, task);
          }
          if (!stretto::go_on(s.ctx, s.unit)) return false;
        }
        stretto::signal(s.ctx, s.unit, s.base + 1);
        if (!stretto::wait(s.ctx, s.unit, 0, s.base + 1)) return false;
        break;
      }
    }
    s.base += 2;
    stretto::signal(s.ctx, s.unit, s.base);
  }
  else
  {
    STRETTO_DECIDED(s.ctx, s.unit, 0, 1)
    switch (s.unit)
    {
      case 0:
      {
        for (int64_t task = 0; task < 2; ++task)
        {
          STRETTO_TASK(s.ctx, s.unit, 2, task)
          {
            k2_x(s.ctx, b_tree_in0, b_tree_out0, task);
          }
          if (!stretto::go_on(s.ctx, s.unit)) return false;
        }
        stretto::signal(s.ctx, s.unit, s.base + 1);
        if (!stretto::wait(s.ctx, s.unit, 1, s.base + 1)) return false;
        break;
      }
      case 1:
      {
        for (int64_t task = 2; task < 4; ++task)
        {
          STRETTO_TASK(s.ctx, s.unit, 2, task)
          {
            k2_x(s.ctx, b_tree_in0, b_tree_out0, task);
          }
          if (!stretto::go_on(s.ctx, s.unit)) return false;
        }
        stretto::signal(s.ctx, s.unit, s.base + 1);
        if (!stretto::wait(s.ctx, s.unit, 0, s.base + 1)) return false;
        break;
      }
    }
    s.base += 2;
    stretto::signal(s.ctx, s.unit, s.base);
  }
  --s.depth;
  return true;
}
extern "C" void stretto_run(stretto::Context* ctx, int unit)
{
  State s{ctx, unit, 0, 0, 0};
  if (!stretto::arena_left(ctx, 0)) return;
  if (!f0_main(s, ctx->arena)) return;
}
