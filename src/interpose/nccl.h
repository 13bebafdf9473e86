/* The part of NCCL's C interface for which libckptinterpose has functions of its own, which call NCCL's. NCCL's own
 * header would need NCCL and the CUDA runtime on the build machine. Names and order of parameters are NCCL's. Enums are
 * passed as int. */
#ifndef CKPT_INTERPOSE_NCCL_H
#define CKPT_INTERPOSE_NCCL_H

enum { ncclSuccess = 0, ncclInternalError = 3, ncclRemoteError = 6, ncclInProgress = 7 };

typedef struct ncclComm* ncclComm_t; /* only NCCL knows its members */
typedef void* cudaStream_t;
typedef struct {
  char internal[128];
} ncclUniqueId;

#endif
