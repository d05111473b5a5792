package manifest

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
)

// Job is how pods are run until enough of them have succeeded.
type Job struct {
	// Completions is how many pods have to succeed; 0 means that one has, and all others have ended.
	Completions  int
	Parallelism  int
	BackoffLimit int           // how many failures there may be
	Deadline     time.Duration // for the whole job; 0 means none
	Indexed      bool          // each number from 0 to Completions-1 has a pod that has to succeed

	w        *workload
	restarts *RestartLimit // BackoffLimit, where RestartsContainers
}

// defaultBackoffLimit is an API server's.
const defaultBackoffLimit = 6

// What pods of an indexed Job know their number by.
const (
	indexKey      = batchv1.JobCompletionIndexAnnotation
	indexVariable = "JOB_COMPLETION_INDEX"
)

var jobFields = workloadFields("parallelism", "completions", "activeDeadlineSeconds", "backoffLimit", "completionMode",
	"ttlSecondsAfterFinished")

func (d *decoder) job(data []byte) error {
	var source batchv1.Job
	if err := decodeStrict(data, &source); err != nil {
		return err
	}
	if source.Spec.Suspend != nil && !*source.Spec.Suspend { // what `kubectl get` prints
		source.Spec.Suspend = nil
	}
	if p := source.Spec.PodReplacementPolicy; p != nil && *p == batchv1.TerminatingOrFailed {
		source.Spec.PodReplacementPolicy = nil
	}
	w, err := d.workload(&source, "Job", nil, &source.Spec.Template, jobFields)
	if err == nil {
		err = w.job(&source.Spec)
	}
	return w.wrap(err)
}

func (w *workload) job(spec *batchv1.JobSpec) error {
	job := &Job{BackoffLimit: defaultBackoffLimit, w: w}
	var c checks
	var err error
	if job.Parallelism, err = count("spec.parallelism", spec.Parallelism); err != nil {
		c.errs = append(c.errs, err)
	} else if job.Parallelism == 0 {
		c.add("spec.parallelism", "0 starts no pod")
	}
	switch {
	case spec.Completions != nil:
		if job.Completions, err = count("spec.completions", spec.Completions); err != nil {
			c.errs = append(c.errs, err)
		} else if job.Completions == 0 {
			c.add("spec.completions", "0 starts no pod")
		}
	case spec.Parallelism == nil:
		job.Completions = 1
	}
	if n := spec.BackoffLimit; n != nil {
		if job.BackoffLimit = int(*n); *n < 0 {
			c.add("spec.backoffLimit", "%d is negative", *n)
		}
	}
	if s := spec.ActiveDeadlineSeconds; s != nil {
		if job.Deadline = Seconds(*s); *s < 1 {
			c.add("spec.activeDeadlineSeconds", "%d is not positive", *s)
		}
	}
	if m := spec.CompletionMode; m != nil {
		switch job.Indexed = *m == batchv1.IndexedCompletion; {
		case *m != batchv1.IndexedCompletion && *m != batchv1.NonIndexedCompletion:
			c.add("spec.completionMode", "%q is neither Indexed nor NonIndexed", *m)
		case job.Indexed && spec.Completions == nil:
			c.add("spec.completions", "missing: spec.completionMode is Indexed")
		}
	}
	if p := w.template.Spec.RestartPolicy; p != corev1.RestartPolicyOnFailure && p != corev1.RestartPolicyNever {
		c.add("spec.template.spec.restartPolicy", "%q is neither OnFailure nor Never", p)
	}
	if err := errors.Join(c.errs...); err != nil {
		return err
	}
	job.restarts = &RestartLimit{Most: job.BackoffLimit}
	group := &Group{Owner: w.owner, Job: job}
	first := job.Parallelism
	if job.Completions > 0 {
		first = min(first, job.Completions)
	}
	for i := range first {
		pod, err := job.Pod(i)
		if err != nil {
			return err
		}
		group.Pods = append(group.Pods, pod)
	}
	w.d.add(group)
	return nil
}

// RestartsContainers says whether a failed container is started again in its pod, and not a new pod in place of its
// pod.
func (j *Job) RestartsContainers() bool {
	return j.w.template.Spec.RestartPolicy == corev1.RestartPolicyOnFailure
}

// Pod makes one more pod of the job, for a number if the job is indexed.
func (j *Job) Pod(index int) (*Pod, error) {
	name, number := j.w.owner.Name, strconv.Itoa(index)
	base := name + "-"
	if j.Indexed {
		base += number + "-"
	}
	pod, err := j.w.pod(generate(base), true, func(p *corev1.Pod) {
		p.Labels[batchv1.JobNameLabel], p.Labels["job-name"] = name, name
		if !j.Indexed {
			return
		}
		p.Labels[indexKey], p.Annotations[indexKey] = number, number
		p.Spec.Hostname = fmt.Sprintf("%s-%d", name, index)
		for c := range containers(&p.Spec) {
			c.Env = append(c.Env, corev1.EnvVar{Name: indexVariable, Value: number})
		}
	})
	if err == nil && j.RestartsContainers() {
		pod.Restarts = j.restarts
	}
	return pod, err
}
