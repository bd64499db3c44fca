// A program without Python for `carma bench trace --tasks more_ways_tasks.toml`: memory from a stream-ordered pool that keeps what it has.
//
//     nvcc -O2 more_ways_pool.cu -o more_ways_pool && ./more_ways_pool 2000
#include <cstdint>
#include <cstdio>
#include <cstdlib>

__global__ void scale(float *values, size_t count, float by) {
    for (size_t at = blockIdx.x * (size_t)blockDim.x + threadIdx.x; at < count; at += (size_t)gridDim.x * blockDim.x)
        values[at] = values[at] * by + 1.0f;
}

static void check(cudaError_t error, const char *what) {
    if (error != cudaSuccess) {
        fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
        exit(1);
    }
}

int main(int argc, char **argv) {
    int steps = argc > 1 ? atoi(argv[1]) : 100;
    cudaMemPool_t pool;
    cudaStream_t stream;
    check(cudaDeviceGetDefaultMemPool(&pool, 0), "cudaDeviceGetDefaultMemPool");
    uint64_t all = UINT64_MAX;
    check(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &all), "cudaMemPoolSetAttribute");
    check(cudaStreamCreate(&stream), "cudaStreamCreate");
    for (int step = 1; step <= steps; ++step) {
        // 256 MiB to 4 GiB, another size at each step.
        size_t count = (size_t)(1 + step % 16) << 26;
        float *values;
        check(cudaMallocAsync(&values, count * sizeof(float), stream), "cudaMallocAsync");
        scale<<<1024, 256, 0, stream>>>(values, count, 0.5f);
        check(cudaGetLastError(), "launch");
        check(cudaFreeAsync(values, stream), "cudaFreeAsync");
        if (step % 100 == 0) {
            check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
            printf("%d/%d\n", step, steps);
            fflush(stdout);
        }
    }
    check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
}
