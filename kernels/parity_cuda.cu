#include "kernels/parity_cuda.hpp"
#include "kernels/parity_job.hpp"

namespace ckpt::kernels::device {

namespace {

constexpr unsigned threads_per_block = 256;

__global__ void __launch_bounds__(threads_per_block) xor_kernel(const __grid_constant__ ParityJob job) {
  const std::uint64_t index = std::uint64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (index < vector_count(job)) xor_vector(job, index);
}

template <int rows>
__global__ void __launch_bounds__(threads_per_block) multiply_kernel(const __grid_constant__ ParityJob job) {
  const std::uint64_t index = std::uint64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (index < vector_count(job)) multiply_vector<rows>(job, index);
}

void launch(const ParityJob& job, std::size_t rows, unsigned blocks, cudaStream_t stream) {
  if (is_xor(job, rows)) {
    xor_kernel<<<blocks, threads_per_block, 0, stream>>>(job);
  } else if (rows == 1) {
    multiply_kernel<1><<<blocks, threads_per_block, 0, stream>>>(job);
  } else if (rows == 2) {
    multiply_kernel<2><<<blocks, threads_per_block, 0, stream>>>(job);
  } else if (rows == 3) {
    multiply_kernel<3><<<blocks, threads_per_block, 0, stream>>>(job);
  } else {
    multiply_kernel<4><<<blocks, threads_per_block, 0, stream>>>(job);
  }
}

}  // namespace

cudaError_t combine(const Matrix& matrix, std::span<const Source> sources, std::span<const Output> outputs,
                    std::size_t length_bytes, cudaStream_t stream, bool to_sum) {
  const ParityJob job = make_parity_job(matrix, sources, outputs, length_bytes, to_sum);
  const std::uint64_t vectors = vector_count(job);
  if (vectors == 0) return cudaSuccess;
  const std::uint64_t blocks = (vectors + threads_per_block - 1) / threads_per_block;
  if (blocks > 0x7FFFFFFFU) return cudaErrorInvalidValue;  // 8 TiB
  launch(job, matrix.rows, static_cast<unsigned>(blocks), stream);
  return cudaGetLastError();
}

}  // namespace ckpt::kernels::device
