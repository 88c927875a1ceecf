/* The engine as a table of C functions, for plugins that are compiled against a framework of their
 * own.
 *
 * A plugin calls orca_plugin_api(ORCA_PLUGIN_API_VERSION) once (and orca_plugin_kernels for
 * computations) and checks that it is not NULL; nothing else of liborca.so may be used. So a new
 * framework version rebuilds the plugin alone, and a new engine needs no new plugin as long as the
 * version stays.
 *
 * No function throws. Those that can fail return 0 for success or an orca::Code, and fill `error`.
 * Enum values are those of <orca/comm/types.h>.
 */
#ifndef ORCA_PLUGIN_API_H_
#define ORCA_PLUGIN_API_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define ORCA_PLUGIN_API_VERSION 2u

typedef struct OrcaComm OrcaComm;   /* a group of ranks */
typedef struct OrcaArena OrcaArena; /* registered memory, one a process */

typedef struct OrcaError {
  int code;           /* orca::Code */
  char message[2048]; /* ends with 0; cut when longer */
} OrcaError;

/* The launcher's key-value store. `get` waits up to `timeout_ms`, then returns non-zero; on success
 * it passes the value to `receive(receiver, data, size)`, once. Both may be called from any thread.
 */
typedef struct OrcaStore {
  void* context;
  int (*set)(void* context, const char* key, const void* data, size_t size, OrcaError* error);
  int (*get)(void* context, const char* key, int64_t timeout_ms,
             void (*receive)(void*, const void*, size_t), void* receiver, OrcaError* error);
} OrcaStore;

typedef struct OrcaGroup {
  const char* name; /* of the group; distinct groups on one store have distinct names */
  uint64_t generation;
  int32_t rank;
  int32_t world;
  int64_t timeout_ms; /* for one collective */
  OrcaStore store;    /* must stay valid until connect returns */
  /* "key=value" lines for CommOptions ("transport=tcp\nstreams=2"), or NULL. The environment
   * (ORCA_TRANSPORT, ...) gives the defaults. An unknown key is an error that lists the known ones.
   */
  const char* options;
} OrcaGroup;

typedef struct OrcaBuffer {
  void* data;
  size_t bytes;
} OrcaBuffer;

/* One collective call; see orca::comm::Collective. Inputs are not written. */
typedef struct OrcaCall {
  uint8_t op;     /* orca::comm::Op */
  uint8_t dtype;  /* orca::comm::DType */
  uint8_t reduce; /* orca::comm::ReduceOp */
  int32_t root;
  double factor;
  const OrcaBuffer*
      inputs; /* copied by start; the memory they point to is borrowed until the call has ended */
  size_t input_count;
  const OrcaBuffer* outputs;
  size_t output_count;
  int64_t timeout_ms; /* 0: the group's */
} OrcaCall;

/* Called once at the end of a started call, on a thread of the engine. `error` is NULL when all
 * went well, and only valid during the call. `source` is the sender of a receive, else -1. */
typedef void (*OrcaDone)(void* context, const OrcaError* error, int32_t source);

typedef struct OrcaApi {
  uint32_t version;
  const char* engine_version;

  int (*connect)(const OrcaGroup* group, OrcaComm** comm, OrcaError* error);
  void (*close)(OrcaComm* comm);                     /* leaves the group */
  void (*abort)(OrcaComm* comm, const char* reason); /* ends every pending call, on all ranks */
  uint64_t (*sequence)(OrcaComm* comm);              /* collectives begun */
  const char* (*describe)(OrcaComm* comm);           /* valid until close */

  int (*run)(OrcaComm* comm, const OrcaCall* call, OrcaError* error); /* on the caller's thread */
  int (*start)(OrcaComm* comm, const OrcaCall* call, OrcaDone done, void* context,
               OrcaError* error);
  int (*start_send)(OrcaComm* comm, OrcaBuffer data, int32_t peer, uint64_t tag, OrcaDone done,
                    void* context, OrcaError* error);
  /* `peer` -1: from any rank. */
  int (*start_recv)(OrcaComm* comm, OrcaBuffer data, int32_t peer, uint64_t tag, OrcaDone done,
                    void* context, OrcaError* error);
  /* Blocking forms, on the caller's thread. */
  int (*send)(OrcaComm* comm, OrcaBuffer data, int32_t peer, uint64_t tag, OrcaError* error);
  int (*recv)(OrcaComm* comm, OrcaBuffer data, int32_t peer, uint64_t tag, int32_t* source,
              OrcaError* error);

  /* Registered memory of this process, shared by all its groups: 64-byte aligned. NULL on failure.
   */
  void* (*allocate)(size_t bytes, OrcaError* error);
  void (*release)(void* memory);
} OrcaApi;

/* Returns the table, or NULL when the engine does not speak `version`. The table lives as long as
 * the process. */
__attribute__((visibility("default"))) const OrcaApi* orca_plugin_api(uint32_t version);

/* A convolution of images, float32, stride 1; see orca::learn::Convolution. */
typedef struct OrcaConvolution {
  int64_t images, in_channels, height, width;
  int64_t out_channels, kernel_height, kernel_width;
  int64_t pad_height, pad_width;
} OrcaConvolution;

/* Computations that frameworks do slowly; see <orca/learn/convolution.h>. */
typedef struct OrcaKernels {
  uint32_t version;

  int (*convolution_pays)(const OrcaConvolution* shape); /* whether it is faster here */
  int (*convolve)(const OrcaConvolution* shape, const float* input, const float* weights,
                  const float* bias, float* output, OrcaError* error);
  int (*input_gradient)(const OrcaConvolution* shape, const float* output_gradient,
                        const float* weights, float* input_gradient, OrcaError* error);
  int (*weight_gradient)(const OrcaConvolution* shape, const float* input,
                         const float* output_gradient, int64_t begin, int64_t end,
                         float* weight_gradient, float* bias_gradient, OrcaError* error);
  int (*max_pool)(int64_t planes, int64_t height, int64_t width, const float* input, float* output,
                  int64_t* indices, OrcaError* error);
} OrcaKernels;

/* As orca_plugin_api. */
__attribute__((visibility("default"))) const OrcaKernels* orca_plugin_kernels(uint32_t version);

#ifdef __cplusplus
}
#endif

#endif /* ORCA_PLUGIN_API_H_ */
