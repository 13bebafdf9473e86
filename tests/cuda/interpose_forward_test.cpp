// libckptinterpose passes on every function of NCCL with all its arguments, and returns what NCCL returns.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "src/interpose/interface.h"

struct UniqueId {
  char internal[128];
};

extern "C" {
extern const char* echo_name;
extern std::uint64_t echo_arguments[8];
extern void* echo_made;
#define CKPT_SAME(name) int name(const void*, void*, std::size_t, int, int, void*, void*);
CKPT_SAME(ncclAllReduce)
CKPT_SAME(ncclReduceScatter)
CKPT_SAME(ncclBroadcast)
CKPT_SAME(ncclGather)
CKPT_SAME(ncclScatter)
#undef CKPT_SAME
int ncclAllGather(const void*, void*, std::size_t, int, void*, void*);
int ncclAlltoAll(const void*, void*, std::size_t, int, void*, void*);
int ncclReduce(const void*, void*, std::size_t, int, int, int, void*, void*);
int ncclBcast(void*, std::size_t, int, int, void*, void*);
int ncclSend(const void*, std::size_t, int, int, void*, void*);
int ncclRecv(void*, std::size_t, int, int, void*, void*);
int ncclCommCount(void*, int*);
int ncclCommCuDevice(void*, int*);
int ncclCommUserRank(void*, int*);
int ncclCommFinalize(void*);
int ncclCommRegister(void*, void*, std::size_t, void**);
int ncclCommDeregister(void*, void*);
int ncclRedOpCreatePreMulSum(int*, void*, int, int, void*);
int ncclRedOpDestroy(int, void*);
int ncclCommDestroy(void*);
int ncclCommAbort(void*);
int ncclCommGetAsyncError(void*, int*);
int ncclGroupStart();
int ncclGroupEnd();
int ncclCommInitRank(void**, int, UniqueId, int);
int ncclCommInitRankConfig(void**, int, UniqueId, int, void*);
int ncclCommInitRankScalable(void**, int, int, int, UniqueId*, void*);
int ncclCommInitAll(void**, int, const int*);
int ncclCommSplit(void*, int, int, void**, void*);
int ncclCommShrink(void*, int*, int, void**, void*, int);
const char* ncclGetLastError(void*);
ckpt_interpose_attach_function ckpt_interpose_attach;
ckpt_interpose_detach_function ckpt_interpose_detach;
ckpt_interpose_static_nccl_function ckpt_interpose_static_nccl;
}

namespace {

template <class Number>
std::uint64_t as_number(Number value) {
  if constexpr (std::is_pointer_v<Number>)
    return reinterpret_cast<std::uintptr_t>(value);
  else
    return static_cast<std::uint64_t>(value);
}

// Some different value for a parameter.
template <class Parameter>
Parameter value_of(int which) {
  if constexpr (std::is_pointer_v<Parameter>)
    return reinterpret_cast<Parameter>(static_cast<std::uintptr_t>(0x7000'0000'1000 + 0x1000 * which));
  else if constexpr (sizeof(Parameter) == 8)
    return static_cast<Parameter>(0x1234'5678'9abc'0000 + which);
  else
    return static_cast<Parameter>(-100 - which);
}

// Calls the function with a different value for each parameter.
template <class... Parameters, std::size_t... which>
void expect_forwarded(const char* name, int (*function)(Parameters...), std::index_sequence<which...>) {
  const std::tuple<Parameters...> values(value_of<Parameters>(static_cast<int>(which))...);
  EXPECT_EQ(function(std::get<which>(values)...), 4) << name;
  EXPECT_STREQ(echo_name, name);
  const std::array<std::uint64_t, sizeof...(which)> expected = {as_number(std::get<which>(values))...};
  for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_EQ(echo_arguments[i], expected[i]) << name << " " << i;
}
template <class... Parameters>
void expect_forwarded(const char* name, int (*function)(Parameters...)) {
  expect_forwarded(name, function, std::index_sequence_for<Parameters...>());
}

TEST(InterposeForward, EveryCallReachesNcclWithAllArguments) {
#define CKPT_EXPECT(name) expect_forwarded(#name, name)
  CKPT_EXPECT(ncclAllReduce);
  CKPT_EXPECT(ncclReduceScatter);
  CKPT_EXPECT(ncclBroadcast);
  CKPT_EXPECT(ncclGather);
  CKPT_EXPECT(ncclScatter);
  CKPT_EXPECT(ncclAllGather);
  CKPT_EXPECT(ncclAlltoAll);
  CKPT_EXPECT(ncclReduce);
  CKPT_EXPECT(ncclBcast);
  CKPT_EXPECT(ncclSend);
  CKPT_EXPECT(ncclRecv);
  CKPT_EXPECT(ncclCommCount);
  CKPT_EXPECT(ncclCommCuDevice);
  CKPT_EXPECT(ncclCommUserRank);
  CKPT_EXPECT(ncclCommFinalize);
  CKPT_EXPECT(ncclCommRegister);
  CKPT_EXPECT(ncclCommDeregister);
  CKPT_EXPECT(ncclRedOpCreatePreMulSum);
  CKPT_EXPECT(ncclRedOpDestroy);
  CKPT_EXPECT(ncclCommDestroy);
  CKPT_EXPECT(ncclCommAbort);
  CKPT_EXPECT(ncclCommGetAsyncError);
#undef CKPT_EXPECT
  EXPECT_EQ(ncclGroupStart(), 4);
  EXPECT_STREQ(echo_name, "ncclGroupStart");
  EXPECT_EQ(ncclGroupEnd(), 4);
  EXPECT_STREQ(echo_name, "ncclGroupEnd");
  EXPECT_STREQ(ncclGetLastError(&echo_made), "an error");
  EXPECT_EQ(echo_arguments[0], as_number(&echo_made));
}

TEST(InterposeForward, CallsThatCreateCommunicatorsReachNcclWithAllArguments) {
  void* comm = nullptr;
  UniqueId id{};
  id.internal[127] = 17;
  int numbers[] = {1, 2};
  const auto expect = [&](int result, const char* name, const std::vector<std::uint64_t>& arguments) {
    EXPECT_EQ(result, 0) << name;
    EXPECT_STREQ(echo_name, name);
    EXPECT_EQ(std::vector(echo_arguments, echo_arguments + arguments.size()), arguments) << name;
    EXPECT_EQ(std::exchange(comm, nullptr), echo_made);
  };
  const std::uint64_t out = as_number(&comm);
  expect(ncclCommInitRank(&comm, 8, id, 3), "ncclCommInitRank", {out, 8, 17, 3});
  expect(ncclCommInitRankConfig(&comm, 8, id, 3, numbers), "ncclCommInitRankConfig",
         {out, 8, 17, 3, as_number(&numbers[0])});
  expect(ncclCommInitRankScalable(&comm, 8, 3, 2, &id, numbers), "ncclCommInitRankScalable",
         {out, 8, 3, 2, as_number(&id), as_number(&numbers[0])});
  expect(ncclCommInitAll(&comm, 1, numbers), "ncclCommInitAll", {out, 1, as_number(&numbers[0])});
  expect(ncclCommSplit(echo_made, 5, 6, &comm, numbers), "ncclCommSplit",
         {as_number(echo_made), 5, 6, out, as_number(&numbers[0])});
  expect(ncclCommShrink(echo_made, numbers, 2, &comm, numbers, 9), "ncclCommShrink",
         {as_number(echo_made), as_number(&numbers[0]), 2, out, as_number(&numbers[0]), 9});
}

TEST(InterposeForward, NamesALibraryThatContainsNccl) {
  const char* const file = ckpt_interpose_static_nccl();
  ASSERT_NE(file, nullptr);
  EXPECT_THAT(file, testing::HasSubstr("libckpt_echo.so"));
}

TEST(InterposeForward, LinkedLibraryAcceptsAnEngine) {
  int self = 0;
  ckpt_interposed_engine engine{};
  engine.struct_size = sizeof engine;
  engine.engine = &self;
  EXPECT_EQ(ckpt_interpose_attach(&engine), nullptr);
  ckpt_interpose_detach(&self);
}

}  // namespace
