#include "kernels/parity_cuda.hpp"
#include "kernels/parity_job.hpp"

namespace ckpt::kernels::device {

namespace {

template <class Made>
__global__ void __launch_bounds__(parity_threads_per_block) encode(const __grid_constant__ ParityJob job) {
  encode_vector<Made>(job, blockIdx.x, threadIdx.x);
}

}  // namespace

cudaError_t combine(const Matrix& matrix, std::span<const Source> sources, std::span<const Output> outputs,
                    std::size_t length_bytes, cudaStream_t stream, bool to_sum) {
  const ParityJob job = make_parity_job(matrix, sources, outputs, length_bytes, to_sum);
  return with_outputs(job, matrix.rows, [&]<class Made>(Made) {
    const std::uint64_t blocks = block_count(job);
    if (blocks == 0) return cudaSuccess;
    if (blocks > 0x7FFFFFFFU) return cudaErrorInvalidValue;  // 4 TiB
    encode<Made><<<static_cast<unsigned>(blocks), parity_threads_per_block, 0, stream>>>(job);
    return cudaGetLastError();
  });
}

}  // namespace ckpt::kernels::device
